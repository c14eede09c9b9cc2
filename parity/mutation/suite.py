"""The same mutants judged by a pytest file instead of the planned cases, for scale."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from ..git import Refused
from .hunt import Lab
from .mutants import Mutant
from .outcomes import Outcome
from .scratch import planted

DEADLINE = 300.0  # seconds for the whole file
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
)


@dataclass
class _First:
    """The first test that failed."""

    name: str = ""
    sentence: str = ""
    done: int = field(default=0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.done += report.when == "call"
        if report.failed and not self.name:
            self.name = report.nodeid.rpartition("::")[2]
            self.sentence = report.longreprtext.strip().splitlines()[-1]


def run_file(path: str) -> Outcome:
    """Run a test file in this process, which must be a worker, up to its first failure."""
    first = _First()
    code = pytest.main([path, *OPTIONS, "--rootdir", str(Path(path).parent)], plugins=[first])
    if code == pytest.ExitCode.OK:
        return Outcome("survived", cases=first.done)
    if code == pytest.ExitCode.TESTS_FAILED:
        return Outcome("killed", check=first.name, reason=first.sentence, cases=first.done)
    raise ValueError(f"Expected tests in {path} but pytest ended with code {int(code)}.")


@dataclass(frozen=True)
class Suite:
    """The judge for scale: a test file that imports the code under test."""

    lab: Lab
    sources: Mapping[str, bytes]
    path: Path

    def check(self) -> None:
        """Refused unless the file passes without a mutant."""
        with self.lab.worker(self.lab.code) as worker:
            before = worker.pool.schedule(run_file, (str(self.path),), timeout=DEADLINE).result()
        if before.status != "survived":
            raise Refused(
                f"Expected {self.path} to pass without a mutant but {before.check} failed: "
                f"{before.reason}; mend it first."
            )

    def __call__(self, mutant: Mutant, stop: Event) -> Outcome:
        """Run the file once on a mutant."""
        if stop.is_set():
            raise InterruptedError
        content = mutant.apply(self.sources[mutant.file])
        with planted(self.lab.code, mutant.id, mutant.file, content) as root:
            started = time.monotonic()
            with self.lab.worker(root) as worker:
                future = worker.pool.schedule(run_file, (str(self.path),), timeout=DEADLINE)
                error = future.exception()
            seconds = round(time.monotonic() - started, 3)
        if error is None:
            found = future.result()
            return Outcome(found.status, "", found.check, "", found.reason, found.cases, seconds)
        status = "timeout" if isinstance(error, TimeoutError) else "killed"
        return Outcome(status, check="process", reason=f"{type(error).__name__}: {error}")
