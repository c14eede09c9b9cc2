"""Progress of long work, on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

EVERY = 10.0  # seconds between two plain lines


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with (done, total)."""
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console) as bar:
            task = bar.add_task(what)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield _Lines(what)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


class _Lines:
    def __init__(self, what: str) -> None:
        self.what = what
        self.started = self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= EVERY:
            self.last = now
            seconds = now - self.started
            print(f"{self.what}: {done} of {total}, {seconds:.0f} s", file=sys.stderr, flush=True)  # noqa: T201 - the terminal is the output
