"""Locks that the system drops when their process ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process is in here with this file."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def taken(path: Path) -> TextIO | None:
    """A lock that is held until the handle is closed, or None where another process has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
