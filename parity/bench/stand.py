"""What runs in the process of an arm: one workload at a time, captured and ready to be timed.

Functions here are called through the process pool of :class:`parity.isolation.Worker`; the arm's
own kernels are on the import path by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .workloads import Workload

HOST = ("host time, forward", "host time, forward and backward")
REPLAYS = 5  # of a graph, of which a block gives the median
CALLS = 40  # in a block of host time

_block: list[Callable[[], float]] = []


def tasks(only: str) -> list[str]:
    """The names of all that is timed, those that contain ``only``; ValueError if none does."""
    from .workloads import WORKLOADS

    names = [task_of(work, is_backward) for work in WORKLOADS for is_backward in (False, True)]
    found = [name for name in (*names, *HOST) if only in name]
    if not found:
        raise ValueError(f"Expected a workload whose name contains {only!r} but there is none.")
    return found


def task_of(work: Workload, is_backward: bool) -> str:
    """The name of a workload's pass among all that is timed."""
    return f"{work.name}, {'backward' if is_backward else 'forward'}"


def first_fault() -> str:
    """Why this arm's kernels get no figures: the first finding, or an empty string."""
    from .command import not_at_parity

    return next(not_at_parity(), "")


def set_up(task: str) -> None:
    """Make the buffers of a task and run it once; what the last one held is let go."""
    import torch

    _block.clear()
    torch.cuda.empty_cache()
    _block.append(_host(task) if task in HOST else _replays(task))


def block() -> float:
    """Median microseconds of one call."""
    return _block[0]()


def _replays(task: str) -> Callable[[], float]:
    import torch

    from . import timing, workloads

    name, _, passing = task.rpartition(", ")
    work = next(work for work in workloads.WORKLOADS if work.name == name)
    make = workloads.backward if passing == "backward" else workloads.forward
    with torch.cuda.stream(torch.cuda.Stream()):
        held = workloads.rotated(work, torch.device("cuda"))
        calls = [make(work, workloads.OURS, each) for each in held]
        graph = timing.capture(calls)
    return lambda: timing.replayed_graph(graph, len(calls), REPLAYS)


def _host(task: str) -> Callable[[], float]:
    from . import timing, workloads
    from .command import host_calls

    forward, both = host_calls(workloads.OURS)
    call = forward if task == HOST[0] else both
    timing.host_block(call, CALLS)  # what a first call does once
    return lambda: timing.host_block(call, CALLS)
