"""Run the cases of a night at one commit, in as many processes as there are processors."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..arms import Arm
from ..case import Case
from ..git import Refused
from ..interrupts import result
from ..isolation import Job, Worker, share_out, workers
from ..profiles import Profile
from ..progress import progress
from ..provenance import Misplaced
from ..record import Record
from ..runs import Run
from ..verdict import Exit
from .night import Night
from .search import Search, rows, search
from .store import History

WORKERS = 4  # at most; each holds torch and, on a GPU, a context of its own


@dataclass(frozen=True)
class Plan:
    """What the user asked for, and the nights so far."""

    ops: str | None
    profile: Profile
    history: History
    machine: str


def run_night(plan: Plan, arm: Arm, run: Run) -> tuple[Night, bool]:
    """The night, and whether it was interrupted.

    Raises:
        ValueError: unknown ops, or a kept case that its contract no longer allows.
        Refused: code of another place than the commit, or interrupted before any case ran.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    count = min(WORKERS, len(os.sched_getaffinity(0)))
    with workers([arm] * count, run.folder.parent.parent / "triton", run.folder) as team:
        try:
            found, jobs, about = _prepare(plan, team[0])
        except (Refused, ValueError, KeyboardInterrupt):
            shutil.rmtree(run.folder)  # nothing ran, so there is nothing to keep
            raise
        records, seconds, interrupted = _perform(run, team, jobs)
    if not records:
        shutil.rmtree(run.folder)
        raise Refused("Interrupted before any case ran, so nothing was kept.", Exit.INTERRUPTED)
    night = Night(
        id=run.id,
        machine=plan.machine,
        number=plan.history.next_number(plan.machine),
        started=started,
        tier=about["tier"],
        versions=", ".join(f"{name} {v}" for name, v in sorted(about["versions"].items())),
        commit=arm.commit,
        ops=plan.ops or "",
        rows=tuple(rows(found, records, seconds)),
    )
    return night, interrupted


def _prepare(plan: Plan, worker: Worker) -> tuple[Search, list[Job], dict[str, Any]]:
    """What to run, and the tier and versions it runs on."""
    draws = f"{plan.machine}/{plan.history.next_number(plan.machine)}"
    try:
        specs = worker.specs(plan.ops).result()
        about = result(worker.describe(specs))
    except (Misplaced, RuntimeError) as error:
        raise Refused(str(error), Exit.FAULT) from error
    found = search(Path(worker.arm.root), specs, plan.profile, plan.history.nights, draws)
    by_name = {spec.name: spec for spec in specs}
    return found, [(by_name[case.op], case) for case in found.cases], about


def _perform(
    run: Run, team: list[Worker], jobs: list[Job]
) -> tuple[dict[str, Record], dict[str, float], bool]:
    """Records and seconds by case id, and whether somebody interrupted it."""
    records: dict[str, Record] = {}
    begun: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def before(case: Case) -> None:
        run.save_case(case)
        begun[case.id] = time.monotonic()

    try:
        with progress("Running cases") as report:

            def after(record: Record) -> None:
                seconds[record.case_id] = time.monotonic() - begun[record.case_id]
                run.add(record)
                records[record.case_id] = record
                report(len(records), len(jobs))

            share_out(team, jobs, before, after)
    except KeyboardInterrupt:
        return records, seconds, True
    return records, seconds, False
