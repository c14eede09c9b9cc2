"""``parity gate``: base against head on the command line."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..git import Refused

if TYPE_CHECKING:
    from ..arms import Arm
    from ..runs import Run
    from .comparison import Comparison

CASES_PER_OP = 100


@click.command()
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
    from ..arms import import_roots, project_root, revisions, workspace
    from ..runs import Run

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
    from ..isolation import workers
    from ..reports import terminal
    from .report import conclude
    from .setup import prepare

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
    from ..progress import progress

    try:
        with progress("Running cases") as report:
            comparison.perform(report)
    except KeyboardInterrupt:
        return True
    return False
