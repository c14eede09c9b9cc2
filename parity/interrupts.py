"""Requests to stop, acted on only where stopping is safe.

An exception raised by a signal handler comes at any point, also while a lock of the process pool is
held, which then nobody ever releases.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")
POLL = 0.2  # seconds between two looks at whether somebody wants us to stop
_asked = False


@contextmanager
def deferred() -> Iterator[None]:
    """Within, SIGINT and SIGTERM are only noted, and :func:`check` raises KeyboardInterrupt."""
    global _asked
    _asked = False
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = {number: signal.signal(number, _note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check() -> None:
    """Raise KeyboardInterrupt if somebody asked to stop since the last time."""
    global _asked
    if _asked:
        _asked = False
        raise KeyboardInterrupt


def result(future: Future[Result]) -> Result:
    """What a future gives, waited for in steps that :func:`check` can end."""
    while not wait([future], timeout=POLL).done:
        check()
    return future.result()


def _note(number: int, frame: FrameType | None) -> None:
    """Note the first request; whoever asks again does not want to wait for a safe place."""
    global _asked
    if _asked:
        raise KeyboardInterrupt
    _asked = True
