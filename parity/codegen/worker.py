"""The processes that compile for one arm; functions with a leading underscore run inside them."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from ..arms import Arm
from ..spec import OpSpec, Unsupported
from .cases import Call
from .row import Row, row_of

DEADLINE = 300.0  # seconds for one call; a statically unrolled loop over 128 heads takes 6
START = 300.0  # seconds to import everything, on a cold disk


@dataclass(frozen=True)
class Compiler:
    """The compiling processes of one arm."""

    arm: Arm
    pool: ProcessPool

    def specs(self, ops: str | None) -> list[OpSpec]:
        """The contracts that ``ops`` names when this arm's root is on the import path."""
        found: list[OpSpec] = self.pool.schedule(_specs, (ops,), timeout=START).result()
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
            return [row_of(spec, call, arch, error=f"crashes with {_cause(error.exitcode)}")]
        if isinstance(error, TimeoutError):
            return [row_of(spec, call, arch, error=f"takes over {DEADLINE:g} s")]
        raise error


@contextmanager
def compilers(arms: list[Arm], workers: int, scratch: Path) -> Iterator[list[Compiler]]:
    """Compiling processes for every arm, ``workers`` together; stopped in the end.

    ``scratch`` takes Triton's caches and what the processes print.
    """
    each = max(1, workers // len(arms))
    context = multiprocessing.get_context("spawn")
    started = [
        Compiler(
            arm,
            ProcessPool(
                max_workers=each,
                initializer=_start,
                initargs=(arm.root, str(scratch / arm.name)),
                context=context,
            ),
        )
        for arm in arms
    ]
    try:
        yield started
    finally:
        for compiler in started:
            compiler.pool.stop()  # type: ignore[no-untyped-call]  # pebble leaves it untyped
        for compiler in started:
            compiler.pool.join()


_failed_start: list[Exception] = []


def _start(root: str, prefix: str) -> None:
    """Set the process up; an error is kept for the first task, which can report it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops us
    file = os.open(f"{prefix}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    os.environ.pop("TRITON_INTERPRET", None)  # kernels must be compiled, not interpreted
    os.environ |= {"TRITON_CACHE_DIR": f"{prefix}-{os.getpid()}", "OMP_NUM_THREADS": "1"}
    try:
        from ..provenance import mount

        mount(Path(root))
        import torch

        torch.set_num_threads(1)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        _failed_start.append(error)


def _ready() -> None:
    for error in _failed_start:
        raise error


def _specs(ops: str | None) -> list[OpSpec]:
    from ..catalog import resolve

    _ready()
    return list(resolve(ops).values())


def _files(specs: list[OpSpec], root: str) -> list[str]:
    from ..provenance import describe

    _ready()
    return list(describe(specs, Path(root))["files"])


def _rows(spec: OpSpec, call: Call, arch: str, cache: str) -> list[Row]:
    """One row for each launch of a call, and one for what stopped it."""
    from .capture import capture
    from .measure import NotCompiled, describe, measure

    _ready()
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


def _cause(code: int) -> str:
    """A signal by name, or an exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
