"""The processes that compile for one arm; functions with a leading underscore run inside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from ..arms import Arm
from ..process import CONTEXTS, START, cause, ready, specs, start, stopping
from ..spec import OpSpec, Unsupported
from .cases import Call
from .row import Row, row_of

DEADLINE = 300.0  # seconds for one call; a statically unrolled loop over 128 heads takes 6


@dataclass(frozen=True)
class Compiler:
    """The compiling processes of one arm."""

    arm: Arm
    pool: ProcessPool

    def specs(self, ops: str | None) -> list[OpSpec]:
        """The contracts that ``ops`` names when this arm's root is on the import path."""
        found: list[OpSpec] = self.pool.schedule(specs, (ops,), timeout=START).result()
        return found

    def files(self, specs: list[OpSpec]) -> Future[list[str]]:
        """The files of the code under test; Misplaced where one lies outside the arm's root."""
        return self.pool.schedule(_files, (specs, self.arm.root), timeout=START)

    def rows(self, spec: OpSpec, call: Call, arch: str, cache: Path) -> Future[list[Row]]:
        """Start compiling a call; :meth:`outcome` makes rows of whatever becomes of it."""
        return self.pool.schedule(_rows, (spec, call, arch, str(cache)), timeout=DEADLINE)

    def outcome(self, future: Future[list[Row]], spec: OpSpec, call: Call, arch: str) -> list[Row]:
        """The rows of a call that ended, well or badly; none where the arm does not support it."""
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, ProcessExpired):
            return [row_of(spec, call, arch, error=f"crashes with {cause(error.exitcode)}")]
        if isinstance(error, TimeoutError):
            return [row_of(spec, call, arch, error=f"takes over {DEADLINE:g} s")]
        raise error


@contextmanager
def compilers(arms: list[Arm], workers: int, scratch: Path) -> Iterator[list[Compiler]]:
    """Compiling processes for every arm, ``workers`` together; stopped in the end.

    ``scratch`` takes Triton's caches and what the processes print.
    """
    each = max(1, workers // len(arms))
    started = [
        Compiler(
            arm,
            ProcessPool(
                max_workers=each,
                initializer=start,
                initargs=(arm.root, str(scratch / arm.name), f"{scratch / arm.name}.log", _prepare),
                context=CONTEXTS["spawn"],
            ),
        )
        for arm in arms
    ]
    with stopping(*started):
        yield started


def _prepare() -> None:
    os.environ.pop("TRITON_INTERPRET", None)  # kernels must be compiled, not interpreted
    os.environ["TRITON_CACHE_DIR"] += f"-{os.getpid()}"


def _files(specs: list[OpSpec], root: str) -> list[str]:
    from ..provenance import describe

    ready()
    return list(describe(specs, Path(root))["files"])


def _rows(spec: OpSpec, call: Call, arch: str, cache: str) -> list[Row]:
    """One row for each launch of a call, and one for what stopped it."""
    from .capture import capture
    from .measure import NotCompiled, describe, measure

    ready()
    try:
        recorder, stopped = capture(spec, call, arch)
    except Unsupported:
        return []
    rows = []
    for number, launch in enumerate(recorder.launches):
        known = {"launch": number, "host": recorder.digest()} | describe(launch)
        try:
            known |= measure(launch, Path(cache))
        except NotCompiled as error:
            known["error"] = str(error)
        rows.append(row_of(spec, call, arch, **known))
    return [*rows, row_of(spec, call, arch, error=stopped)] if stopped else rows
