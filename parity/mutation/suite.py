"""Mutants judged by pytest files: for scale, or where the planned cases let one live."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest

from ..git import Refused
from ..isolation import Worker
from ..provenance import digest
from .hunt import Lab
from .mutants import Mutant
from .outcomes import Outcome
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
    """The first test that failed."""

    name: str = ""
    sentence: str = ""
    done: int = field(default=0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.done += report.when == "call"
        if report.failed and not self.name:
            self.name = report.nodeid
            self.sentence = report.longreprtext.strip().splitlines()[-1]


def run_files(paths: tuple[str, ...]) -> Outcome:
    """Run test files in this process, which must be a worker, up to the first failure."""
    first = _First()
    root = os.path.commonpath([Path(path).parent for path in paths])
    code = pytest.main([*paths, *OPTIONS, "--rootdir", root], plugins=[first])
    if code == pytest.ExitCode.OK:
        return Outcome("survived", cases=first.done)
    if code == pytest.ExitCode.TESTS_FAILED:
        return Outcome("killed", check=first.name, reason=first.sentence, cases=first.done)
    raise ValueError(f"Expected tests in {paths} but pytest ended with code {int(code)}.")


@dataclass(frozen=True)
class Suite:
    """The judge that asks test files, which import the code under test."""

    lab: Lab
    sources: Mapping[str, bytes]
    paths: tuple[Path, ...]

    def digests(self) -> list[str]:
        """Of all that may decide, beside the mutant and the harness."""
        contents = [path.read_bytes() for path in self.paths]
        return [digest(content) for content in (*contents, *self.sources.values())]

    def check(self) -> None:
        """Refused unless the files pass without a mutant."""
        with self.lab.worker(self.lab.code) as worker:
            before = self._schedule(worker).result()
        if before.status != "survived":
            raise Refused(
                f"Expected {before.check} to pass without a mutant but it failed: "
                f"{before.reason}; mend it first."
            )

    def __call__(self, mutant: Mutant, stop: Event) -> Outcome:
        """Run the files once on a mutant."""
        if stop.is_set():
            raise InterruptedError
        content = mutant.apply(self.sources[mutant.file])
        with planted(self.lab.code, mutant.id, mutant.file, content) as root:
            started = time.monotonic()
            with self.lab.worker(root) as worker:
                future = self._schedule(worker)
                error = future.exception()
            seconds = round(time.monotonic() - started, 3)
        if error is None:
            return replace(future.result(), seconds=seconds)
        status = "timeout" if isinstance(error, TimeoutError) else "killed"
        return Outcome(status, check="process", reason=f"{type(error).__name__}: {error}")

    def _schedule(self, worker: Worker) -> Future[Outcome]:
        paths = tuple(map(str, self.paths))
        return worker.pool.schedule(run_files, (paths,), timeout=DEADLINE)
