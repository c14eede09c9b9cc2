"""Before the first case: contracts, provenance, plan, and the results that are known already."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..case import Case
from ..git import Refused
from ..interrupts import result
from ..isolation import Worker
from ..provenance import Misplaced
from ..runs import Run, readable
from ..spec import OpSpec
from ..verdict import Exit
from .baseline import Baseline, cache, saved
from .comparison import Comparison
from .cross import crossed
from .fingerprint import differences
from .known import Known, load
from .request import Request

ANOTHER_CONTRACT = (
    "The baseline was recorded under another contract of this op; record it again, or gate by "
    "revisions, which run base's cases too."
)


def prepare(run: Run, team: list[Worker], request: Request) -> Comparison:
    """Read the contracts, check what each arm imported, plan the cases; all of it in files.

    Raises:
        ValueError: unknown ops, a root without the code they need, no baseline in the file.
        Refused: both arms have one and the same code, an arm has code of another place, or the code
            of a run that goes on has changed.
    """
    baseline = saved(request.baseline) if request.baseline else None
    before = run.document("run")
    header = {
        "kind": "gate",
        "request": request.to_dict(),
        "ops": request.ops,
        "seed": request.seed,
    }
    if not before:
        run.write("run", header | {"arms": {w.arm.name: w.arm.to_dict() for w in team}})
    contracts, arms = read_arms(team, request.ops)
    if baseline:
        own = {"file": str(request.baseline), "fingerprint": baseline.header["fingerprint"]}
        arms = {"base": baseline.header["arm"] | own} | arms
    _refuse_one_file(arms)
    if before:
        refuse_changes(run, before["arms"], arms)
    known = _known(team, run)
    roots = {worker.arm.name: Path(worker.arm.root) for worker in team}
    where = (roots.get("base"), roots["head"])
    plan = (request.cases_per_op, request.seed)
    jobs = crossed(contracts.get("base", []), contracts["head"], where, *plan)
    comparison = Comparison(run, {worker.arm.name: worker for worker in team}, jobs, known)
    if baseline:
        take(comparison, baseline, arms["head"]["fingerprint"])
    else:
        comparison.cache = _cache(run, arms["base"]["fingerprint"])
    comparison.recall()
    run.write("environment", _environment(arms["head"]))
    kept = {arm: len(records) for arm, records in comparison.records.items()}
    run.write("run", header | {"arms": arms, "cases": len(comparison.ops), "recalled": kept})
    return comparison


def read_arms(
    team: list[Worker], ops: str | None
) -> tuple[dict[str, list[OpSpec]], dict[str, dict[str, Any]]]:
    """Contracts and provenance of each arm; only the last must have contracts.

    Raises:
        ValueError: unknown ops, or a root without the code they need.
        Refused: an arm has code of another place.
    """
    try:
        contracts = _contracts(team, ops)
        return contracts, _describe(team, contracts)
    except (Misplaced, RuntimeError) as error:
        raise Refused(str(error), Exit.FAULT) from error


def _contracts(team: list[Worker], ops: str | None) -> dict[str, list[OpSpec]]:
    """The contracts of each arm; a base from before the ops were described has none."""
    asked = [(worker.arm.name, worker.specs(ops)) for worker in team]
    *others, (last, future) = asked
    return {last: result(future)} | {name: _or_none(other) for name, other in others}


def _or_none(future: Future[list[OpSpec]]) -> list[OpSpec]:
    try:
        return result(future)
    except Exception:  # noqa: BLE001 - code under test that fails to import may raise anything
        return []


def _describe(team: list[Worker], contracts: dict[str, list[OpSpec]]) -> dict[str, dict[str, Any]]:
    every = {spec.candidate: spec for specs in contracts.values() for spec in specs}
    futures = {worker.arm: worker.describe(list(every.values())) for worker in team}
    return {arm.name: arm.to_dict() | result(future) for arm, future in futures.items()}


def _refuse_one_file(arms: dict[str, dict[str, Any]]) -> None:
    shared = sorted(set(arms["base"]["files"]) & set(arms["head"]["files"]))
    if shared:
        raise Refused(
            f"Nothing compared: both arms imported {shared[0]}; "
            "name two roots that hold their own copies.",
            Exit.NOTHING_COMPARED,
        )


def refuse_changes(run: Run, before: dict[str, Any], arms: dict[str, Any]) -> None:
    """A run goes on only with what it began with; ValueError where it does not say so."""
    for name, arm in arms.items():
        with readable(run):
            changed = differences(before[name]["fingerprint"], arm["fingerprint"])
        if changed or not arm["fingerprint"]["arm"]:
            raise Refused(
                f"Expected run {run.id} to go on with what it began with but {name} has "
                f"{', '.join(changed) or 'too many files to tell'}; run `parity gate` again."
            )


def _known(team: list[Worker], run: Run) -> Known:
    """Head's known issues, which lie in its revision or, for folders, in the project."""
    of = {worker.arm.name: Path(worker.arm.root) for worker in team}
    if team[-1].arm.kind != "repository":
        return Known(tuple(load(run.workspace.parent)))
    try:
        before = load(of["base"]) if "base" in of else []
    except ValueError:
        before = []  # head has mended the file, and all of it is new
    return Known.compared(before, load(of["head"]))


def _cache(run: Run, fingerprint: dict[str, str]) -> Baseline | None:
    """What earlier gates recorded of this base; None where its sources are too many to tell."""
    return cache(run.workspace, fingerprint) if fingerprint["arm"] else None


def take(comparison: Comparison, baseline: Baseline, head: dict[str, str]) -> None:
    """Let a recorded base stand for a running one, and doubt every case where it cannot."""
    comparison.baseline = baseline
    now = {name: text for name, text in head.items() if name not in ("arm", "packages")}
    if changed := differences(baseline.header["fingerprint"], now):
        reason = f"The baseline was recorded with {'; '.join(changed)}: record it again, like this."
        comparison.doubts = dict.fromkeys(comparison.ops, reason)
    for spec, case in comparison.jobs:
        if case.id in baseline.entries and baseline.record(spec, case) is None:
            comparison.doubts.setdefault(case.id, ANOTHER_CONTRACT)
    comparison.orphans = {
        case_id: Case.from_dict(entry["case"])
        for case_id, entry in baseline.entries.items()
        if case_id not in comparison.ops
    }
    comparison.doubts |= dict.fromkeys(comparison.orphans, ANOTHER_CONTRACT)


def _environment(head: dict[str, Any]) -> dict[str, Any]:
    """Where and when; head's tier and versions are base's, both are children of this process."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    machine = {"platform": platform.platform(), "cpus": os.cpu_count()}
    return {"tier": head["tier"], "versions": head["versions"], "started": started} | machine
