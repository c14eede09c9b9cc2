"""How a command ends: with its exit code, and one sentence for whatever stopped it."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from .git import Refused
from .verdict import Exit

CLOSED_PIPE = 128 + signal.SIGPIPE  # what a shell says of a program that such a pipe has ended
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def ended(command: Callable[[], int | None]) -> int:
    """The exit code of a command; a pipe that nobody reads any more ends it quietly."""
    try:
        return _ended(command)
    except BrokenPipeError:
        _silence()
        return CLOSED_PIPE


def _ended(command: Callable[[], int | None]) -> int:
    try:
        code = int(command() or 0)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except Refused as error:
        return _refuse(str(error), error.code)
    except click.ClickException as error:
        return _refuse(error.format_message(), Exit.USAGE)
    except ValueError as error:
        return _refuse(str(error), Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _refuse("Interrupted before anything could be compared.", Exit.INTERRUPTED)
    except SystemExit as error:
        if _of_closed_pipe(error):
            raise BrokenPipeError from error
        # code under test that exits while it is imported must not choose our exit code
        sentence = f"Expected to finish but was ended by sys.exit({error.code})."
        return _refuse(sentence, Exit.FAULT)
    except Exception as error:  # noqa: BLE001 - the exit code must not read as a verdict
        return _stopped(error)
    return code


def _of_closed_pipe(error: SystemExit) -> bool:
    """Whether click or rich ended us since nobody reads stdout or stderr any more.

    Rich puts another stdout in its place, and click raises only when it has handled the error.
    """
    watch = select.poll()
    for stream in (1, 2):
        watch.register(stream, 0)
    unread = any(event & select.POLLERR for _, event in watch.poll(0))
    return unread or isinstance(error.__context__, BrokenPipeError)


def _stopped(error: Exception) -> int:
    """What the system did to us is no fault of parity itself."""
    if isinstance(error, OSError) and error.errno in FULL:
        code = _refuse(
            f"Expected room for what is written but the system says: {error.strerror}; free some. "
            "`parity gate --resume` goes on with a gate.",
            Exit.INTERRUPTED,
        )
        _silence()
        return code
    if isinstance(error, OSError) and ".parity" in Path(str(error.filename)).parts:
        return _refuse(
            f"Expected to find {error.filename} as it was but the system says: {error.strerror}; "
            "leave .parity alone while a command runs, and run it again.",
            Exit.INTERRUPTED,
        )
    traceback.print_exception(error)
    return _refuse(f"Fault of parity itself, please report it: {error}", Exit.FAULT)


def _silence() -> None:
    """Nothing comes of what is still to be flushed when Python ends."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def _refuse(sentence: str, code: Exit) -> int:
    click.echo(sentence, err=True)
    return code
