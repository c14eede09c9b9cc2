"""The command ``parity``.  Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType

import click

from . import __version__
from .bench.command import bench
from .codegen.command import codegen
from .doctor import doctor
from .dumps.command import dumps
from .gate.command import gate
from .gate.save import baseline
from .git import Refused
from .history.command import history
from .history.nightly import nightly
from .mutation.command import mutate
from .port.command import port
from .race.command import race
from .report import report
from .tiers.command import run as run_cases
from .triage.command import triage
from .verdict import Exit

CLOSED_PIPE = 128 + signal.SIGPIPE  # what a shell says of a program that such a pipe has ended


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="parity")
def cli() -> None:
    """Does a kernel compute what its reference computes, and is a failure the change's fault?

    Exit codes: 0 no regression, 1 regression, 2 interrupted, 3 fault of parity itself, 4 wrong
    usage, 5 nothing compared, 10 inconclusive, 141 when nobody reads the output any more.
    """


cli.add_command(baseline)
cli.add_command(bench)
cli.add_command(codegen)
cli.add_command(doctor)
cli.add_command(dumps)
cli.add_command(gate)
cli.add_command(history)
cli.add_command(nightly)
cli.add_command(mutate)
cli.add_command(port)
cli.add_command(race)
cli.add_command(report)
cli.add_command(run_cases)
cli.add_command(triage)


@cli.command()
@click.argument("case", required=False)
@click.option("--run", metavar="RUN", help="Look in this run only [default: the newest].")
@click.option("--ops", metavar="NAME", help="The contracts of a case given as a file.")
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="List the failures and hazards of head in that run.",
)
def replay(case: str | None, run: str | None, ops: str | None, listed: bool) -> int:
    """Run one recorded case again: CASE is an id, as printed with a failure, or a case file."""
    from . import replay as again
    from .arms import project_root

    project = project_root()
    if listed:
        which, failures = again.listing(project, run)
        _say(which, err=True)
        for failure in failures:
            more = f" (and {failure.cases - 1} more)" if failure.cases > 1 else ""
            _say(f"{failure.case_id}  {failure.run}  {failure.op}: {failure.sentence}{more}")
        return Exit.OK
    if case is None:
        raise click.UsageError(
            "Expected the id of a case but got none; list them with `parity replay --list`."
        )
    recorded = again.find(case, project, run, ops)
    with tempfile.TemporaryDirectory() as scratch:
        found = again.replay(recorded, Path(scratch))
    for line in (found.outcome, *found.sentences, found.ran, recorded.case.to_json()):
        _say(line)
    return found.code


def _say(line: str, *, err: bool = False) -> None:
    from .reports.plain import plain

    click.echo(plain(line), err=err)


def main() -> None:
    """Run the command line; every refusal is one sentence on stderr and its own exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command line; a pipe that nobody reads any more ends it quietly."""
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)  # what is still to be flushed
        return CLOSED_PIPE
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


def _run(arguments: list[str]) -> int:
    try:
        return int(cli.main(arguments, prog_name="parity", standalone_mode=False) or 0)
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
        return _fault(error)


def _fault(error: Exception) -> int:
    if isinstance(error, OSError) and ".parity" in Path(str(error.filename)).parts:
        return _refuse(
            f"Expected to find {error.filename} as it was but the system says: {error.strerror}; "
            "leave .parity alone while a command runs, and run it again.",
            Exit.INTERRUPTED,
        )
    traceback.print_exception(error)
    return _refuse(f"Fault of parity itself, please report it: {error}", Exit.FAULT)


def _refuse(sentence: str, code: Exit) -> int:
    click.echo(sentence, err=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
