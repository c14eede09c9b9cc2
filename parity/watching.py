"""What kernels did to memory while a candidate was observed; known on the CPU tier only."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .cpu_tier.arguments import Owner
    from .cpu_tier.findings import MemoryFinding
    from .observe import Observation

WRITES_OUTSIDE = ("write_out_of_storage", "write_out_of_view")
READS_OUTSIDE = ("read_out_of_storage",)
CONFLICTS = ("write_write", "read_write", "write_read")


@contextmanager
def watched(seen: Observation, phase: str) -> Iterator[None]:
    """Trace every launch within this context into `seen.traces[phase]`, where Triton interprets."""
    if not _interprets():
        yield
        return
    from .cpu_tier import trace

    with trace(lambda tensor: _owner(seen, tensor)) as traced:
        seen.traces[phase] = traced
        yield


@contextmanager
def kept_inside() -> Iterator[None]:
    """Let no launch within this context leave its tensors, where Triton interprets: an illegal call
    that is not refused would end the process."""
    if not _interprets():
        yield
        return
    from .cpu_tier import trace

    with trace():
        yield


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1" and "parity.cpu_tier.engine" in sys.modules


def _owner(seen: Observation, tensor: torch.Tensor) -> Owner | None:
    """What the op calls the memory behind a tensor, if it is an input or allocated by the op."""
    from .cpu_tier.arguments import Owner

    place = tensor.untyped_storage().data_ptr()
    buffers = [*seen.inputs.tensors.items()]
    buffers += [(f"incoming gradient of {name}", item) for name, item in seen.gradients.items()]
    buffers += [("memory it allocated", item.guarded) for item in seen.allocations]
    owners = [
        (name, item) for name, item in buffers if item.tensor.untyped_storage().data_ptr() == place
    ]
    for name, item in owners:
        if len(owners) == 1 or item.holds(tensor.data_ptr()):
            return Owner(name, item.tensor, item.buffer)
    return None


def everything_watched(seen: Observation) -> bool:
    """Whether kernels ran, and every access of every program was seen."""
    return any(traced.launches for traced in seen.traces.values()) and not unseen(seen)


def unseen(seen: Observation) -> str:
    """Which accesses of kernels no trace saw, and why; empty where all were, or none ran here."""
    traces = seen.traces.values()
    told = [
        f"programs of {kernel} ran untraced, through Triton's stock interpreter ({reason})"
        for kernel, reason in sorted({alone for traced in traces for alone in traced.unwatched})
    ]
    if any(traced.unchecked for traced in traces):
        told.append("lanes went through pointers that belong to no tensor argument")
    return "; ".join(told)


def moved(seen: Observation) -> dict[str, dict[str, int]]:
    """By tensor and phase: load operations, bytes loaded and stored, over all launches.

    Empty where not everything was watched.
    """
    totals: dict[str, dict[str, int]] = {}
    for phase, traced in seen.traces.items() if everything_watched(seen) else ():
        for entry in traced.traffic:
            total = totals.setdefault(f"{entry.owner or entry.tensor} in {phase}", {})
            for name in ("loads", "loaded", "stored"):
                total[name] = total.get(name, 0) + getattr(entry, name)
    return totals


def memory_findings(
    seen: Observation, kinds: Collection[str]
) -> Iterator[tuple[str, MemoryFinding]]:
    """Phase and finding of everything of these kinds that was traced."""
    for phase, traced in seen.traces.items():
        yield from ((phase, found) for found in traced.findings if found.kind in kinds)


def shown(seen: Observation, kinds: Collection[str], phase: str = "") -> str:
    """A finding of these kinds (in a phase) as a further sentence, or an empty string.

    Of several always the same one, in whatever order the tensors lie in memory.
    """
    found = memory_findings(seen, kinds)
    return min((f" {one.sentence}" for at, one in found if phase in ("", at)), default="")
