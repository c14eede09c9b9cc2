"""The command ``parity``.  Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import click

from . import __version__
from .bench.command import bench
from .codegen.command import codegen
from .doctor import doctor
from .dumps.command import dumps
from .ending import ended
from .gate.command import gate
from .gate.save import baseline
from .history.command import history
from .history.nightly import nightly
from .mutation.command import mutate
from .port.command import port
from .race.command import race
from .report import report
from .tiers.command import run as run_cases
from .triage.command import triage
from .verdict import Exit


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
    "--list", "listed", is_flag=True, help="List the failures and hazards of head in that run."
)
def replay(case: str | None, run: str | None, ops: str | None, listed: bool) -> int:
    """Run one recorded case again: CASE is an id, as printed with a failure, or a case file."""
    from . import replay as again
    from .arms import project_root
    from .options import refuse_idle

    project = project_root()
    if listed:
        refuse_idle("beside --list", "case", "ops")
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
    if again.is_file(case):
        refuse_idle("beside a case file", "run")
    else:
        refuse_idle("beside the id of a case", "ops")
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
    """The exit code of one command line."""
    return ended(lambda: cli.main(arguments, prog_name="parity", standalone_mode=False))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
