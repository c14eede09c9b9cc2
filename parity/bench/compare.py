"""Base against head on one GPU: three processes, timed in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ..arms import Arm, project_root, revisions, workspace
from ..git import Refused
from ..interrupts import deferred, result
from ..isolation import Worker, workers
from ..verdict import Exit
from . import stand
from .noise import Compared, Speed, interleaved, judge

SETUP = 300.0  # seconds to compile and to fill the buffers of one workload
BLOCK = 60.0


def compare(base: str | None, head: str | None, only: str) -> Iterator[tuple[str, Compared]]:
    """Every task with its comparison, as they come.

    Raises:
        Refused: refs that cannot be compared, no GPU in the processes, or an arm not at parity.
        ValueError: no task of that name.
    """
    names = stand.tasks(only)
    project = project_root()
    home = workspace(project)
    with (
        deferred(),
        revisions(project, base, head) as pair,
        tempfile.TemporaryDirectory(prefix="bench-", dir=home) as logs,
        workers(_three(pair), home / "triton", Path(logs)) as team,
    ):
        _refuse_wrong(team)
        for name in names:
            for worker in team:
                _ask(worker, stand.set_up, SETUP, name)
            times = interleaved({worker.arm.name: _timer(worker) for worker in team})
            yield name, judge(times, len(names))


def _three(pair: tuple[Arm, Arm]) -> tuple[Arm, Arm, Arm]:
    return (*pair, replace(pair[0], name="control"))


def _refuse_wrong(team: list[Worker]) -> None:
    """A wrong kernel gets no figures, also where it is the quicker one."""
    for worker in team[:2]:
        if fault := _ask(worker, stand.first_fault, SETUP):
            raise Refused(
                f"Expected kernels at parity but in {worker.arm.name}: {fault} Run `parity gate`.",
                Exit.REGRESSION if worker.arm.name == "head" else Exit.INCONCLUSIVE,
            )


def _timer(worker: Worker) -> Callable[[], float]:
    return lambda: float(_ask(worker, stand.block, BLOCK))


def _ask(worker: Worker, function: Callable[..., Any], deadline: float, *arguments: str) -> Any:
    return result(worker.pool.schedule(function, arguments, timeout=deadline))


def show(found: Iterator[tuple[str, Compared]]) -> tuple[list[dict[str, Any]], Exit]:
    """Print each comparison as it comes; the rows for a file, and how to end."""
    rows = []
    for name, item in found:
        rows.append({"task": name} | asdict(item))
        click.echo(
            f"{item.verdict} {name}: base {item.base:.1f} us, head {item.head:.1f} us, ratio "
            f"{item.ratio:.3f} ({item.low:.3f} to {item.high:.3f}; counts beyond {item.margin:.3f})"
        )
    slower = any(row["verdict"] == Speed.SLOWER for row in rows)
    return rows, Exit.REGRESSION if slower else Exit.OK
