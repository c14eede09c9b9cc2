"""One process per arm: its own import path, environment and Triton cache, replaced when it is lost.

A case that crashes or hangs costs that case only.  Functions whose name starts with ``_`` and that
have no ``self`` run inside the process.
"""

from __future__ import annotations

import importlib
import platform
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from .arms import Arm
from .case import Case
from .interrupts import POLL, check
from .process import CONTEXTS, START, cause, ready, specs, start, stopping
from .record import Finding, Record
from .spec import OpSpec

DEADLINE = 120.0  # seconds for one case; thirty times what the slowest planned case takes
Job = tuple[OpSpec, Case]


@dataclass
class Worker:
    """The process that runs the cases of one arm; what it prints goes to ``log``.

    It is spawned, since fork breaks CUDA; ``method`` may name another way where no GPU is used.
    """

    arm: Arm
    cache: Path
    log: Path
    method: str = "spawn"
    pool: ProcessPool = field(init=False)

    def __post_init__(self) -> None:
        self._start_pool()

    def _start_pool(self) -> None:
        self.pool = ProcessPool(
            max_workers=1,
            initializer=start,
            initargs=(self.arm.root, str(self.cache), str(self.log), _prepare),
            context=CONTEXTS[self.method],
        )

    def specs(self, ops: str | None) -> Future[list[OpSpec]]:
        """The contracts that ``ops`` names when this arm's root is on the import path."""
        return self._schedule(specs, (ops,), START)

    def describe(self, specs: list[OpSpec]) -> Future[dict[str, Any]]:
        """Provenance of the candidates, tier, versions, and the fingerprint of it all."""
        return self._schedule(_describe, (specs, self.arm.root), START)

    def files(self, specs: list[OpSpec]) -> Future[dict[str, Any]]:
        """Provenance of the candidates alone."""
        return self._schedule(_files, (specs, self.arm.root), START)

    def run(self, spec: OpSpec, case: Case) -> Future[Record]:
        """Start one case; :meth:`outcome` makes a record of whatever becomes of it."""
        return self._schedule(run_here, (spec, case, self.arm.name), DEADLINE)

    def _schedule(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float
    ) -> Future[Any]:
        """Hand a task to the process; one that was killed between two tasks breaks its pool."""
        try:
            return self.pool.schedule(function, arguments, timeout=seconds)
        except RuntimeError:
            self.pool.stop()  # type: ignore[no-untyped-call]  # pebble leaves it untyped
            self._start_pool()
            return self.pool.schedule(function, arguments, timeout=seconds)

    def outcome(self, future: Future[Any], case: Case) -> Record:
        """The record of a case that ended, well or badly."""
        error = future.exception()
        if error is None:
            record: Record = future.result()
            return record
        status, reason = "infrastructure", f"{type(error).__name__}: {error}"
        if isinstance(error, ProcessExpired) and error.exitcode == -signal.SIGKILL:
            reason = "the worker was killed from outside, as a machine short of memory does"
        elif isinstance(error, ProcessExpired):
            status, reason = "crashed", cause(error.exitcode)
        elif isinstance(error, SystemExit):
            status, reason = "crashed", f"exit code {error.code}"
        elif isinstance(error, TimeoutError):
            status, reason = "timeout", f"more than {DEADLINE:g} seconds"
        return Record(case.id, case.op, self.arm.name, status, reason=reason)


@contextmanager
def workers(arms: Iterable[Arm], cache: Path, logs: Path) -> Iterator[list[Worker]]:
    """A process for each arm, started at the same time and stopped in the end."""
    started = [Worker(arm, cache / arm.name, logs / f"{arm.name}.log") for arm in arms]
    with stopping(*started):
        yield started


def share_out(
    team: list[Worker],
    jobs: list[Job],
    before: Callable[[Case], None],
    after: Callable[[Record], None],
) -> None:
    """Run every job once, in whichever worker is free; otherwise like :func:`run_all`."""
    shared = iter(jobs)
    run_all([(worker, shared) for worker in team], before, after)


def run_all(
    work: Sequence[tuple[Worker, Iterable[Job]]],
    before: Callable[[Case], None],
    after: Callable[[Record], None],
) -> None:
    """Run the jobs of every worker, the workers side by side.

    ``before`` is called with a case before it starts, ``after`` with its record as it arrives.
    """
    waiting = [(worker, iter(jobs)) for worker, jobs in work]
    running: dict[Future[Record], tuple[int, Case]] = {}

    def advance(index: int) -> None:
        worker, jobs = waiting[index]
        job = next(jobs, None)
        if job is not None:
            before(job[1])
            running[worker.run(*job)] = (index, job[1])

    for index in range(len(waiting)):
        advance(index)
    while running:
        check()
        for future in wait(running, timeout=POLL, return_when=FIRST_COMPLETED).done:
            index, case = running.pop(future)
            after(waiting[index][0].outcome(future, case))
            advance(index)


_tier: list[str] = []


def _prepare() -> None:
    from .interpreter import prepare

    _tier.append(prepare())
    importlib.import_module("parity.runner")  # here, where no case pays for it with its deadline


def _files(specs: list[OpSpec], root: str) -> dict[str, Any]:
    from .provenance import describe

    return describe(specs, Path(root))


def _describe(specs: list[OpSpec], root: str) -> dict[str, Any]:
    from .gate.fingerprint import fingerprint

    ready()
    versions = {name: version(name) for name in ("torch", "triton")}
    versions["python"] = platform.python_version()
    made_of = {"fingerprint": fingerprint(Path(root), _tier[0])}
    return {"tier": _tier[0], "versions": versions} | made_of | _files(specs, root)


def run_here(spec: OpSpec, case: Case, arm: str) -> Record:
    """Run one case in this process, which must be a worker; code that does not import fails it."""
    from .provenance import absent
    from .runner import run_case

    ready()
    try:
        missing = absent(spec.candidate)
    except Exception as error:  # noqa: BLE001 - code under test that cannot even be imported
        return Record(case.id, case.op, arm, "failed", findings=(_broken(error),), checks=("runs",))
    if missing:
        return Record(case.id, case.op, arm, "unsupported", reason=missing)
    try:
        return run_case(spec, case, arm)
    except Exception:
        traceback.print_exc()  # into the log: the record has room for one line only
        raise


def _broken(error: Exception) -> Finding:
    from .observe import describe_error

    kind, frame = describe_error(error)
    sentence = f"Expected the candidate to import but it raised {type(error).__name__}: {error}."
    return Finding("runs", "import", kind, frame=frame, sentence=sentence)
