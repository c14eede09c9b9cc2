"""Mutants judged by pytest files: for scale, or where the planned cases let one live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Event

import pytest
from pebble import ProcessExpired

from ..git import Refused
from ..process import cause
from ..provenance import digest
from ..runner import one_thread
from .hunt import Lab
from .mutants import Mutant
from .outcomes import Outcome
from .reach import Reach, traced
from .scratch import planted

DEADLINE = 300.0  # seconds for all files
OPTIONS = (
    "-x",
    "-q",
    "--noconftest",
    "-c",
    "/dev/null",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:randomly",
    "--import-mode=importlib",  # the folder of the tests may hold the code without the mutant
    "--hypothesis-profile=ci",  # the same examples each time, and no deadline
)


@dataclass
class _First:
    """The first test that failed, or the first file that could not be imported."""

    name: str = ""
    sentence: str = ""
    done: int = field(default=0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.done += report.when == "call" and not report.skipped
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self.name:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longreprtext.strip().splitlines()[-1]
            self.name, self.sentence = report.nodeid, text.partition("\n")[0]


class _Tracer:
    """Which lines below ``root`` each test executes, what it sets up included."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reached: dict[str, Reach] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with traced(self.root) as reach:
            done = yield
        self.reached[item.nodeid] = reach
        return done


def run_tests(tests: tuple[str, ...], root: str, *plugins: object) -> Outcome:
    """Run test files, or tests by id, in this process, which must be a worker, up to the first
    failure; ``root`` is the folder that their ids begin at."""
    first = _First()
    with one_thread():
        code = pytest.main([*tests, *OPTIONS, "--rootdir", root], plugins=[first, *plugins])
    if first.name:
        return Outcome("killed", check=first.name, reason=first.sentence, cases=first.done)
    if code == pytest.ExitCode.OK:
        return Outcome("survived", cases=first.done)
    raise ValueError(
        f"Expected tests in {', '.join(tests)} but pytest ended with code {int(code)}; check that "
        "they are pytest files."
    )


def trace_tests(paths: tuple[str, ...], root: str, code: str) -> tuple[Outcome, dict[str, Reach]]:
    """The end of all files on the code as it is, and what each test executes of it."""
    tracer = _Tracer(Path(code))
    return run_tests(paths, root, tracer), tracer.reached


@dataclass
class Suite:
    """The judge that asks test files, which import the code under test.

    ``reached`` says by test which lines it executes: a mutant meets those that execute its
    statement, and those that execute none of the code, since they may do so in another process.
    """

    lab: Lab
    sources: Mapping[str, bytes]
    harness: str
    paths: tuple[Path, ...]
    reached: dict[str, Reach] = field(default_factory=dict)

    @cached_property
    def root(self) -> str:
        """The folder of the files, or one above."""
        return os.path.commonpath([path.parent for path in self.paths])

    def key(self, mutant: Mutant) -> str:
        """A digest of all that decides: code, tests, harness."""
        contents = [*(path.read_bytes() for path in self.paths), *self.sources.values()]
        parts = (mutant.id, self.harness, *map(digest, contents))
        return digest("\0".join(parts).encode())

    def prepare(self) -> None:
        """Run without a mutant; refused unless all tests pass and not all are skipped."""
        paths = tuple(map(str, self.paths))
        with self.lab.worker(self.lab.code) as worker:
            given = (paths, self.root, str(self.lab.code))
            before, self.reached = worker.pool.schedule(
                trace_tests, given, timeout=2 * DEADLINE
            ).result()
        if before.status != "survived":
            raise Refused(
                f"Expected {before.check} to pass without a mutant but it failed: "
                f"{before.reason}; mend it first."
            )
        if before.cases == 0:
            raise Refused(f"Expected tests to run in {', '.join(paths)} but all were skipped.")

    def covering(self, mutant: Mutant) -> list[str]:
        """The tests that may notice it."""
        lines = set(range(mutant.first, mutant.last + 1))
        return [
            name
            for name, reach in self.reached.items()
            if not reach or lines & reach.get(mutant.file, set())
        ]

    def __call__(self, mutant: Mutant, stop: Event) -> Outcome:
        """Run the tests once on a mutant."""
        if stop.is_set():
            raise InterruptedError
        tests = tuple(f"{self.root}/{name}" for name in self.covering(mutant))
        if not tests:
            return Outcome("survived", reason="no test executes this line")
        content = mutant.apply(self.sources[mutant.file])
        with planted(self.lab.code, mutant.id, mutant.file, content) as root:
            started = time.monotonic()
            with self.lab.worker(root) as worker:
                given = (tests, self.root)
                future = worker.pool.schedule(run_tests, given, timeout=DEADLINE)
                error = future.exception()
            seconds = round(time.monotonic() - started, 3)
        end = future.result() if error is None else _lost(error)
        return replace(end, seconds=seconds)


def _lost(error: BaseException) -> Outcome:
    """The end of a mutant whose tests came to none: only what the mutant did is held against it,
    not a machine short of memory."""
    if isinstance(error, TimeoutError):
        return Outcome("timeout", check="process", reason=f"more than {DEADLINE:g} seconds")
    if isinstance(error, ProcessExpired) and error.exitcode != -signal.SIGKILL:
        return Outcome("killed", check="process", reason=cause(error.exitcode))
    return Outcome("survived", reason=f"no verdict: {type(error).__name__}: {error}")
