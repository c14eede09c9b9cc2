"""``parity gate``: base against head on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..git import Refused
from ..interrupts import check, deferred
from ..locks import taken

if TYPE_CHECKING:
    from ..arms import Arm
    from ..runs import Run
    from .comparison import Comparison
    from .generated import Item
    from .request import Request

CASES_PER_OP = 100
FOLDER = click.Path(path_type=Path)


@click.command()
@click.option("--base", metavar="REF", help="Compare with this revision [default: merge-base].")
@click.option("--head", metavar="REF", help="The change [default: the files as they are now].")
@click.option("--repo", type=FOLDER, help="Take the revisions from this repository.")
@click.option("--base-root", type=FOLDER, help="Import base from this folder.")
@click.option("--head-root", type=FOLDER, help="Import head from this folder.")
@click.option("--baseline", type=FOLDER, help="Compare with this file of `parity baseline save`.")
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--cases-per-op", type=click.IntRange(1), help=f"[default: {CASES_PER_OP}]")
@click.option("--seed", type=click.IntRange(0), help="[default: 0]")
@click.option("--power", is_flag=True, default=None, help="Plant bugs too: do the cases see them?")
@click.option("--resume", is_flag=True, help="Go on with the newest gate, which was stopped.")
def gate(resume: bool, **options: Path | str | int | None) -> int:
    """Run every case on base and on head, and tell which failures the change causes."""
    from ..arms import project_root, workspace
    from ..reports import terminal
    from ..reports.plain import plain
    from ..runs import Run
    from .request import unfinished

    project = project_root()
    if resume and any(value is not None for value in options.values()):
        raise click.UsageError(
            "Expected --resume alone but got more; the run that goes on has its own options."
        )
    with deferred():
        run, request = unfinished(project) if resume else (None, _request(options))
        if run is not None:
            click.echo(plain(f"Going on with run {terminal.title(run)}"), err=True)
        with request.arms(project) as arms:
            return _compare(run or Run.create(workspace(project)), arms, request)


def _request(options: dict[str, Path | str | int | None]) -> Request:
    """What the options ask for; the plan of a baseline is that of its file."""
    from .baseline import saved
    from .request import Request

    given = {name: value for name, value in options.items() if value is not None}
    if "baseline" in given:
        plan = saved(Path(str(given["baseline"]))).header["plan"]
        if own := sorted(set(plan) & set(given)):
            raise click.UsageError(
                f"Expected --baseline without --{own[0].replace('_', '-')} but got both; "
                "the file brings the plan that it was recorded with."
            )
        given |= plan
    return Request.from_dict(given)


def _compare(run: Run, arms: tuple[Arm, ...], request: Request) -> int:
    from ..arms import project_root
    from ..isolation import workers
    from ..reports import terminal
    from .power import with_power
    from .report import conclude
    from .setup import prepare

    lock = taken(run.lock_file)
    if lock is None:
        raise Refused(f"Expected a gate that was stopped but run {run.id} is still at work.")
    output, resumed = terminal.console(), bool(run.document("run"))
    with lock, workers(arms, run.workspace / "triton", run.folder) as team:
        try:
            comparison = prepare(run, team, request)
        except (Refused, ValueError, KeyboardInterrupt):
            if not resumed:
                shutil.rmtree(run.folder)  # nothing ran, so there is nothing to keep
            raise
        terminal.show_header(output, run.document("run"), run.document("environment"))
        interrupted = _perform(comparison)
        code: list[Item] = []
        try:
            code = [] if interrupted else _compile(run, arms, request)
            result = conclude(comparison, code, interrupted=interrupted)
        except KeyboardInterrupt:
            result = conclude(comparison, code, interrupted=True)
        if request.power:
            result = with_power(project_root(), request, run.document("run")["arms"], result)
            run.write("result", result)
    terminal.show_result(output, result, str(run.folder))
    return int(result["exit_code"])


def _compile(run: Run, arms: tuple[Arm, ...], request: Request) -> list[Item]:
    """What the report says of generated code; nothing where it cannot be compiled, and why."""
    from .generated import generated_code

    try:
        return generated_code(run, arms, request.ops)
    except Exception as error:  # noqa: BLE001 - whatever it is, the cases have their verdicts
        check()
        click.echo(f"NOT_RUN: generated code was not compared: {error}", err=True)
        return []


def _perform(comparison: Comparison) -> bool:
    """Run the cases; True if that was interrupted."""
    from ..progress import progress

    try:
        with progress("Running cases") as report:
            comparison.perform(report)
    except KeyboardInterrupt:
        return True
    return False
