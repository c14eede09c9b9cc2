"""Run a recorded case again, in a process of its own, and say whether anything is different."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arms import Arm, working_tree, workspace
from .case import Case
from .git import Refused
from .isolation import Worker, workers
from .judging import findings_of
from .record import Record
from .runs import Run, all_runs
from .verdict import Exit


@dataclass(frozen=True)
class Recorded:
    """A case to run again: where it was found, what it showed then, where its code comes from."""

    case: Case
    ops: str | None
    arm: Arm
    before: Record | None = None


@dataclass(frozen=True)
class Replayed:
    """``outcome`` is PASSED, FIXED, FAILED as recorded, FAILED differently, UNSUPPORTED, ERROR."""

    outcome: str
    sentences: tuple[str, ...]
    code: Exit


def find(name: str, project: Path, run: str | None, ops: str | None) -> Recorded:
    """The case with this id in the newest run that has it, or the case in a file.

    ``ops`` names the contracts of a case in a file; a run has its own.

    Raises:
        Refused: no run has such a case.
        ValueError: the file holds no case.
    """
    if Path(name).suffix == ".json":
        return Recorded(Case.from_file(Path(name)), ops, working_tree(project))
    for candidate in _runs(project, run):
        if candidate.case_file(name).is_file():
            return _recorded(candidate, name, project)
    where = f"run {run}" if run else "the runs of this folder"
    raise Refused(
        f"Expected a case {name!r} in {where} but found none; "
        "list the failing ones with `parity replay --list`."
    )


def _runs(project: Path, run: str | None) -> Iterator[Run]:
    found = all_runs(workspace(project))
    return (item for item in found if run in (None, item.id, str(item.folder)))


def _recorded(run: Run, case_id: str, project: Path) -> Recorded:
    described = run.document("run")
    case = Case.from_file(run.case_file(case_id))
    heads = [r for r in run.all_records() if (r.case_id, r.arm) == (case_id, "head")]
    before = heads[-1] if heads else None
    return Recorded(case, described.get("ops"), _arm(described, project), before)


def _arm(described: dict[str, Any], project: Path) -> Arm:
    """Head's folder if the user gave one, else the project as it is now."""
    head = described.get("arms", {}).get("head", {})
    if head.get("kind") != "import_root":
        return working_tree(project)
    if not Path(head["root"]).is_dir():
        raise Refused(
            f"Expected the import root {head['root']} of the recorded run but it is gone; "
            "put it back, or run `parity gate` again."
        )
    return Arm("head", "import_root", head["root"])


def replay(recorded: Recorded, scratch: Path) -> Replayed:
    """Run the case as it ran before.

    Raises:
        ValueError: no such op, a root without its code, or a case that its contract forbids.
    """
    with workers([recorded.arm], scratch / "triton", scratch) as (worker,):
        record = _run(worker, recorded)
    return judge(recorded.before, record)


def _run(worker: Worker, recorded: Recorded) -> Record:
    case = recorded.case
    specs = {spec.name: spec for spec in worker.specs(recorded.ops).result()}
    if case.op not in specs:
        raise ValueError(
            f"Expected an op among {', '.join(specs)} but the case is one of {case.op!r}; "
            "name its contracts with --ops."
        )
    future = worker.run(specs[case.op], case)
    wait([future])
    return worker.outcome(future, case)


def judge(before: Record | None, now: Record) -> Replayed:
    """What a second run says, next to the first."""
    sentences = tuple(finding.sentence for finding in findings_of(now))
    if now.status == "infrastructure":
        return Replayed("ERROR", (now.reason,), Exit.FAULT)
    if now.status == "unsupported":
        return Replayed("UNSUPPORTED", (now.reason,), Exit.NOTHING_COMPARED)
    failed_before = bool(before and findings_of(before))
    if now.status == "passed":
        outcome = "FIXED (passes now)" if failed_before else "PASSED"
        return Replayed(outcome, tuple(hazard.sentence for hazard in now.hazards), Exit.OK)
    alike = before is not None and _signatures(before) == _signatures(now)
    outcome = "FAILED as recorded" if alike else "FAILED differently" if before else "FAILED"
    return Replayed(outcome, sentences, Exit.REGRESSION)


def _signatures(record: Record) -> set[str]:
    return {finding.signature for finding in findings_of(record)}


@dataclass
class Failure:
    """What head's failures of one op and signature have in common, and where to see it."""

    run: str
    op: str
    case_id: str
    sentence: str
    cases: int = 0


def listing(project: Path, run: str | None) -> list[Failure]:
    """Head's failures in a run, by op and signature; without ``run`` in the newest with any."""
    for item in _runs(project, run):
        found: dict[tuple[str, str], Failure] = {}
        for record in item.all_records():
            for finding in findings_of(record) if record.arm == "head" else ():
                new = Failure(item.id, record.op, record.case_id, finding.sentence)
                found.setdefault((record.op, finding.signature), new).cases += 1
        if found:
            return list(found.values())
    return []
