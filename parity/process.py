"""How a process starts that works for one arm, and what became of one that ended."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import (
    ForkServerContext,
    ForkServerProcess,
    SpawnContext,
    SpawnProcess,
)
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from pebble import ProcessPool

from .spec import OpSpec

START = 300.0  # seconds to import everything and read the contracts, on a cold disk

CLEAN_EXIT = 97  # what the pool is told in place of 0


class _Lost(BaseProcess):
    """The pool takes a process that ends with 0 for one it stopped, and waits for the deadline."""

    @property
    def exitcode(self) -> int | None:
        code = super().exitcode
        return CLEAN_EXIT if code == 0 else code


class _Spawned(_Lost, SpawnProcess):
    pass


class _Forked(_Lost, ForkServerProcess):
    pass


class _Spawn(SpawnContext):
    Process = _Spawned


class _ForkServer(ForkServerContext):
    Process = _Forked


CONTEXTS = {"spawn": _Spawn(), "forkserver": _ForkServer()}

_failed_start: list[Exception] = []


def start(root: str, cache: str, log: str, prepare: Callable[[], None]) -> None:
    """Set this process up to run the code below ``root``; what it prints goes to ``log``.

    ``prepare`` is called when ``root`` is on the import path.  An error is kept for the first
    task, which can report it (:func:`ready`).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops us
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    os.environ |= {"TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    try:
        _mount(root, prepare)
    except ModuleNotFoundError as error:
        sentence = f"Expected {error.name} to be installed but it is not; "
        _failed_start.append(ValueError(sentence + "install it as constraints.txt pins it."))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        _failed_start.append(error)


def _mount(root: str, prepare: Callable[[], None]) -> None:
    from .provenance import mount

    mount(Path(root))
    prepare()


def ready() -> None:
    """Raise what kept this process from starting; every task begins with it."""
    for error in _failed_start:
        raise error


def specs(ops: str | None) -> list[OpSpec]:
    """The contracts that ``ops`` names when the root of this process is on the import path."""
    from .catalog import resolve

    ready()
    return list(resolve(ops).values())


def cause(code: int) -> str:
    """What ended a process: a signal by name, or an exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {0 if code == CLEAN_EXIT else code}"


class HasPool(Protocol):
    """Whoever has processes; a broken pool may be replaced by another."""

    @property
    def pool(self) -> ProcessPool:
        """The pool as it is now."""
        ...


@contextmanager
def stopping(*owners: HasPool) -> Iterator[None]:
    """Stop the processes in the end, all at the same time, whatever they still do."""
    try:
        yield
    finally:
        for owner in owners:
            owner.pool.stop()  # type: ignore[no-untyped-call]  # pebble leaves it untyped
        for owner in owners:
            owner.pool.join()
