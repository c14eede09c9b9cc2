"""The command ``parity``.  Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from . import __version__
from .bench.command import bench
from .codegen.command import codegen
from .dumps.command import dumps
from .git import Refused
from .port.command import port
from .race.command import race
from .triage.command import triage
from .verdict import Exit

if TYPE_CHECKING:
    from .arms import Arm
    from .gate import Comparison
    from .runs import Run

CASES_PER_OP = 100


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="parity")
def cli() -> None:
    """Does a kernel compute what its reference computes, and is a failure the change's fault?

    Exit codes: 0 no regression, 1 regression, 2 interrupted, 3 fault of parity itself, 4 wrong
    usage, 5 nothing compared, 10 inconclusive.
    """


cli.add_command(bench)
cli.add_command(codegen)
cli.add_command(dumps)
cli.add_command(port)
cli.add_command(race)
cli.add_command(triage)


@cli.command()
@click.option("--base", metavar="REF", help="Compare with this revision [default: merge-base].")
@click.option("--head", metavar="REF", help="The change [default: the files as they are now].")
@click.option("--base-root", type=click.Path(path_type=Path), help="Import base from this folder.")
@click.option("--head-root", type=click.Path(path_type=Path), help="Import head from this folder.")
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--cases-per-op", type=click.IntRange(1), default=CASES_PER_OP, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def gate(
    base: str | None,
    head: str | None,
    base_root: Path | None,
    head_root: Path | None,
    ops: str | None,
    cases_per_op: int,
    seed: int,
) -> int:
    """Run every case on base and on head, and tell which failures the change causes."""
    from .arms import import_roots, project_root, revisions, workspace
    from .runs import Run

    by_root = base_root is not None or head_root is not None
    if by_root and (base or head):
        raise click.UsageError(
            "Expected either --base and --head or --base-root and --head-root but got both kinds; "
            "leave one kind out."
        )
    project = project_root()
    arms: AbstractContextManager[tuple[Arm, Arm]]
    if by_root:
        arms = nullcontext(import_roots(base_root, head_root))
    else:
        arms = revisions(project, base, head)
    with arms as pair:
        return _compare(Run.create(workspace(project)), pair, ops, cases_per_op, seed)


def _compare(run: Run, arms: tuple[Arm, Arm], ops: str | None, count: int, seed: int) -> int:
    from .gate import conclude, prepare
    from .isolation import workers
    from .reports import terminal

    output = terminal.console()
    with workers(arms, run.folder.parent.parent / "triton", run.folder) as team:
        try:
            comparison = prepare(run, team, ops, count, seed)
        except (Refused, ValueError):
            shutil.rmtree(run.folder)  # nothing ran, so there is nothing to keep
            raise
        terminal.show_header(output, run.document("run"), run.document("environment"))
        interrupted = _perform(comparison)
        try:
            result = conclude(comparison, interrupted=interrupted)
        except KeyboardInterrupt:
            result = conclude(comparison, interrupted=True)
    terminal.show_result(output, result, str(run.folder))
    return int(result["exit_code"])


def _perform(comparison: Comparison) -> bool:
    """Run the cases; True if that was interrupted."""
    from .progress import progress

    try:
        with progress("Running cases") as report:
            comparison.perform(report)
    except KeyboardInterrupt:
        return True
    return False


@cli.command()
@click.argument("case", required=False)
@click.option("--run", metavar="RUN", help="Look in this run only [default: the newest].")
@click.option("--ops", metavar="NAME", help="The contracts of a case given as a file.")
@click.option("--list", "listed", is_flag=True, help="List the recorded failures of head.")
def replay(case: str | None, run: str | None, ops: str | None, listed: bool) -> int:
    """Run one recorded case again: CASE is an id, as printed with a failure, or a case file."""
    from . import replay as again
    from .arms import project_root

    project = project_root()
    if listed:
        for run_id, record, finding in again.listing(project, run):
            _say(f"{record.case_id}  {run_id}  {record.op}: {finding.sentence}")
        return Exit.OK
    if case is None:
        raise click.UsageError(
            "Expected the id of a case but got none; list them with `parity replay --list`."
        )
    recorded = again.find(case, project, run, ops)
    with tempfile.TemporaryDirectory() as scratch:
        found = again.replay(recorded, Path(scratch))
    for line in (found.outcome, *found.sentences, recorded.case.to_json()):
        _say(line)
    return found.code


def _say(line: str) -> None:
    from .reports.terminal import plain

    click.echo(plain(line))


def main() -> None:
    """Run the command line; every refusal is one sentence on stderr and its own exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command line."""
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
        # code under test that exits while it is imported must not choose our exit code
        sentence = f"Expected to finish but was ended by sys.exit({error.code}), or a closed pipe."
        return _refuse(sentence, Exit.FAULT)
    except Exception as error:  # noqa: BLE001 - the exit code must not read as a verdict
        traceback.print_exc()
        return _refuse(f"Fault of parity itself, please report it: {error}", Exit.FAULT)


def _refuse(sentence: str, code: Exit) -> int:
    click.echo(sentence, err=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
