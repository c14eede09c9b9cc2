"""``parity nightly``: run one commit as a night, keep it in the history, say what moved."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from ..exports import refuse_unwritable_folder
from ..interrupts import deferred
from ..profiles import PROFILES


@click.command()
@click.option("--ref", default="HEAD", show_default=True, help="The revision to run.")
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--profile", type=click.Choice([*PROFILES]), default="nightly", show_default=True)
@click.option(
    "--history",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that keeps the nights [default: .parity/history].",
)
@click.option(
    "--machine",
    default=platform.node(),
    show_default="the name of this host",
    help="Nights of one name are compared with each other.",
)
def nightly(ref: str, ops: str | None, profile: str, folder: Path | None, machine: str) -> int:
    """Run every op at one commit, keep the night, and say what moved since the nights before.

    Exit code 1: a failure is new or spreads, or a number drifts; 10: a failure flickers or was
    found by a case that no earlier night ran, or not everything ran; 5: this is the first night.
    """
    from ..arms import project_root, revision, workspace
    from ..reports import nightly as report
    from ..reports.terminal import console
    from ..runs import Run
    from . import store
    from .compare import commits_of, compare
    from .run import Plan, run_night

    project = project_root()
    private = workspace(project)
    folder = folder or private / "history"
    refuse_unwritable_folder(folder, "--history")
    history = store.read(folder)
    with deferred(), revision(project, ref) as arm:
        run = Run.create(private)
        run.write(
            "run", {"kind": "nightly", "ops": ops, "seed": 0, "arms": {"head": arm.to_dict()}}
        )
        plan = Plan(ops, PROFILES[profile], history, machine)
        night, interrupted = run_night(plan, arm, run)
    kept = store.write(folder, night)
    result = compare(store.read(folder), night, commits_of(project), interrupted=interrupted)
    run.write("nightly", result)
    (run.folder / "nightly.md").write_text(report.markdown(result), encoding="utf-8")
    report.show(console(), result)
    click.echo(f"History: {kept}\nRecords: {run.folder}")
    return int(result["exit_code"])
