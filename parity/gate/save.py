"""``parity baseline save``: run one revision and keep the results, as a base elsewhere."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exports import ExportFile
from ..interrupts import deferred
from ..verdict import Exit
from .command import CASES_PER_OP, FOLDER

if TYPE_CHECKING:
    from ..arms import Arm
    from ..isolation import Job, Worker
    from ..record import Record
    from .baseline import Baseline


@click.group()
def baseline() -> None:
    """Results of one revision in a file: a base for `parity gate --baseline FILE`."""


@baseline.command()
@click.argument("file", type=ExportFile(special=False))
@click.option("--ref", metavar="REF", help="This revision [default: the files as they are now].")
@click.option("--repo", type=FOLDER, help="Take the revision from this repository.")
@click.option("--root", type=FOLDER, help="Import from this folder instead.")
@click.option("--ops", metavar="NAME", help='"package.module:OPS", "megatron" or "parity".')
@click.option("--cases-per-op", type=click.IntRange(1), default=CASES_PER_OP, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def save(
    file: Path,
    ref: str | None,
    repo: Path | None,
    root: Path | None,
    ops: str | None,
    cases_per_op: int,
    seed: int,
) -> int:
    """Run every case on one revision and write what it gives into FILE."""
    from ..arms import import_root, project_root, revision, workspace

    if root and (ref or repo):
        raise click.UsageError("Expected either --root or a revision but got both.")
    project = project_root()
    arms: AbstractContextManager[Arm]
    arms = nullcontext(import_root("base", root)) if root else revision(project, ref, "base", repo)
    plan = {"ops": ops, "cases_per_op": cases_per_op, "seed": seed}
    with deferred(), arms as arm:
        return _record(file, arm, plan, workspace(project))


def _record(file: Path, arm: Arm, plan: dict[str, Any], home: Path) -> int:
    from ..isolation import workers
    from .baseline import create
    from .cross import crossed
    from .setup import read_arms

    part = file.with_name(f".{file.name}.part")
    with (
        tempfile.TemporaryDirectory(prefix="baseline-", dir=home) as logs,
        workers([arm], home / "triton", Path(logs)) as team,
    ):
        contracts, described = read_arms(team, plan["ops"])
        made_of = described["base"].pop("fingerprint")
        header = {"plan": plan, "arm": described["base"], "fingerprint": made_of}
        where = (None, Path(arm.root))
        jobs = crossed([], contracts["base"], where, plan["cases_per_op"], plan["seed"])
        into = create(part, header)
        try:
            statuses = _run(team[0], jobs, into)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        into.move(file)
    return _tell(file, statuses)


def _run(worker: Worker, jobs: list[Job], into: Baseline) -> Counter[str]:
    from ..isolation import run_all
    from ..progress import progress

    known = {case.id: (spec, case) for spec, case in jobs}
    statuses: Counter[str] = Counter()
    with progress("Running cases") as report:

        def after(record: Record) -> None:
            statuses[record.status] += 1
            report(statuses.total(), len(jobs))
            if record.status != "infrastructure":
                into.add(*known[record.case_id], record)

        run_all([(worker, jobs)], lambda case: None, after)
    return statuses


def _tell(file: Path, statuses: Counter[str]) -> int:
    listed = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
    click.echo(f"Recorded {statuses.total()} cases in {file} ({listed}).")
    if statuses["infrastructure"]:
        return Exit.INCONCLUSIVE
    return Exit.NOTHING_COMPARED if set(statuses) <= {"unsupported"} else Exit.OK
