"""Run mutants: each in its own process, on the cases that execute it, up to the first failure."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Protocol

from ..arms import Arm
from ..isolation import Worker
from ..process import stopping
from .mutants import Mutant
from .outcomes import Journal, Outcome

# Imported once, in the process that all mutants' processes are forked from.
PRELOADED = ["parity.mutation.warm"]
Progress = Callable[[int, int], None]


class Judge(Protocol):
    """Says what becomes of a mutant."""

    def key(self, mutant: Mutant) -> str:
        """A digest of all that decides about it."""

    def prepare(self) -> None:
        """Called once before the first mutant, if any is to be judged."""

    def __call__(self, mutant: Mutant, stop: Event) -> Outcome:
        """Run it; InterruptedError if ``stop`` is set."""


def slots() -> int:
    """How many mutants run at a time: one a CPU that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Lab:
    """The code under test as it is, and where processes keep what they write."""

    code: Path
    cache: Path
    log: Path

    @contextmanager
    def worker(self, root: Path) -> Iterator[Worker]:
        """A fresh process for the code below ``root``."""
        arm = Arm("head", "import_root", str(root))
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        worker = Worker(arm, self.cache, self.log, "forkserver")
        with stopping(worker):
            yield worker


def hunt(
    judge: Judge,
    waiting: Mapping[str, Mutant],
    journal: Journal,
    progress: Progress,
) -> None:
    """Judge every mutant of ``waiting`` (by journal key); outcomes are kept as they arrive.

    Raises KeyboardInterrupt after the running cases have ended; the journal has what is done.
    """
    stop = Event()
    with ThreadPoolExecutor(slots()) as threads:
        running = {threads.submit(judge, item[1], stop): item for item in waiting.items()}
        try:
            for count, future in enumerate(as_completed(running), start=1):
                key, mutant = running[future]
                journal.add(key, mutant.id, future.result())
                progress(count, len(running))
        except BaseException:
            stop.set()
            threads.shutdown(wait=True, cancel_futures=True)
            raise
