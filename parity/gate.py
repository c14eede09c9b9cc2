"""The gate: run every case in base and in head, judge the pairs, make regressions small, say so."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from .case import Case
from .generate import plan
from .git import Refused
from .isolation import Job, Worker, run_all
from .provenance import Misplaced
from .record import Record
from .runs import Run
from .shrink import Budget, shrink, siblings, summary, weight
from .spec import OpSpec
from .verdict import (
    EXIT_CODES,
    Exit,
    Judgement,
    Verdict,
    classify,
    exit_code,
    families,
    findings_of,
    hidden,
    judge,
)

Progress = Callable[[int, int], None]
SEEDS_ASKED = 100  # a check is drawn by one seed in twenty, so that 0.6 % of searches miss it
SHRINK_SECONDS = 90.0  # for all regressions of a run together


@dataclass
class Comparison:
    """A gate in progress: its arms' processes, what is planned, and the records so far."""

    run: Run
    team: list[Worker]
    jobs: list[Job]
    records: dict[str, dict[str, Record]] = field(default_factory=lambda: {"base": {}, "head": {}})
    probes: list[tuple[Record, Record]] = field(default_factory=list)

    def perform(self, progress: Progress) -> None:
        """Run every planned case in both arms; records are kept as they arrive."""
        total = len(self.jobs) * len(self.team)

        def after(record: Record) -> None:
            self.run.add(record)
            self.records[record.arm][record.case_id] = record
            progress(sum(map(len, self.records.values())), total)

        run_all(self.team, self.jobs, self.run.save_case, after)

    def pair(self, spec: OpSpec, case: Case) -> tuple[Record, Record]:
        """Base's and head's record of one more case."""
        found: dict[str, Record] = {}

        def after(record: Record) -> None:
            self.run.add_probe(record)
            found[record.arm] = record

        run_all(self.team, [(spec, case)], self.run.save_case, after)
        return found["base"], found["head"]

    def judgements(self) -> list[Judgement]:
        """The verdicts on every planned case."""
        ops = {case.id: case.op for _, case in self.jobs}
        return judge(ops, self.records["base"], self.records["head"], self.probes)

    def ask_siblings(self) -> None:
        """Look whether an arm that got stuck in a case shows the other's failure in a sibling.

        Once for each op and family: without it, a change that lets cases run further would be
        blamed for whatever they meet there.
        """
        jobs = {case.id: (spec, case) for spec, case in self.jobs}
        asked = set()
        for item in self.judgements():
            base, head = (self.records[arm].get(item.case_id) for arm in ("base", "head"))
            if base is None or head is None or not hidden(item, base, head):
                continue
            question = (item.op, item.family, item.verdict)
            if question not in asked:
                asked.add(question)
                spec, case = jobs[item.case_id]
                self._probe(spec, case, item)

    def _probe(self, spec: OpSpec, case: Case, item: Judgement) -> None:
        """Run siblings until the arm that got stuck shows the failure.

        A check that calls the candidate again is drawn by the seed, so several seeds are asked.
        """
        stuck = 0 if item.verdict == Verdict.REGRESSION else 1
        seeds = range(SEEDS_ASKED) if ":" in item.family else range(1)
        for sibling in siblings(spec, case):
            for step in seeds:
                pair = self.pair(spec, replace(sibling, seed=(sibling.seed + step) % 2**16))
                self.probes.append(pair)
                if any(f.family == item.family for f in findings_of(pair[stuck])):
                    return
                if pair[stuck].status == "unsupported":
                    break


def prepare(run: Run, team: list[Worker], ops: str | None, count: int, seed: int) -> Comparison:
    """Read head's contracts, check what each arm imported, plan the cases; all of it in files.

    Raises:
        ValueError: unknown ops, or a root without the code they need.
        Refused: both arms have one and the same code, or an arm has code of another place.
    """
    header = {"kind": "gate", "ops": ops, "seed": seed}
    run.write("run", header | {"arms": {worker.arm.name: worker.arm.to_dict() for worker in team}})
    try:
        specs = team[-1].specs(ops)
        futures = {worker.arm: worker.describe(specs) for worker in team}
        arms = {arm.name: arm.to_dict() | future.result() for arm, future in futures.items()}
    except (Misplaced, RuntimeError) as error:
        raise Refused(str(error), Exit.FAULT) from error
    _refuse_one_file(arms)
    jobs = [(spec, case) for spec in specs for case in plan(spec, count, seed)]
    run.write("environment", _environment(arms))
    run.write("run", header | {"arms": arms, "cases": len(jobs)})
    return Comparison(run, team, jobs)


def _refuse_one_file(arms: dict[str, dict[str, Any]]) -> None:
    shared = sorted(set(arms["base"]["files"]) & set(arms["head"]["files"]))
    if shared:
        raise Refused(
            f"Nothing compared: both arms imported {shared[0]}; "
            "name two roots that hold their own copies.",
            Exit.NOTHING_COMPARED,
        )


def _environment(arms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Where and when; head's tier and versions are base's, both are children of this process."""
    described = [(arm.pop("tier"), arm.pop("versions")) for arm in arms.values()]
    tier, versions = described[-1]
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    machine = {"platform": platform.platform(), "cpus": os.cpu_count()}
    return {"tier": tier, "versions": versions, "started": started} | machine


def conclude(comparison: Comparison, *, interrupted: bool = False) -> dict[str, Any]:
    """Judge what has run, shrink the regressions, write ``result.json`` and return its content."""
    if not interrupted:
        comparison.ask_siblings()
    judgements = comparison.judgements()
    code = Exit.INTERRUPTED if interrupted else exit_code(item.verdict for item in judgements)
    shrinker = Shrinker(comparison, judgements, 0.0 if interrupted else SHRINK_SECONDS)
    counts = _counts(judgements)
    by_op = {op: _counts(i for i in judgements if i.op == op) for op in _ops(comparison)}
    described = comparison.run.document("run")
    result = {
        "run": comparison.run.id,
        "exit_code": int(code),
        "sentence": _sentence(code, len(comparison.jobs), counts),
        "arms": described["arms"],
        "cases": described["cases"],
        "counts": counts,
        "ops": by_op,
        "items": [_item(group, shrinker) for group in _groups(judgements)],
    }
    comparison.run.write("result", result)
    return result


def _ops(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(case.op for _, case in comparison.jobs))


def _groups(judgements: Iterable[Judgement]) -> list[list[Judgement]]:
    """Failures of one op, verdict and family together; what decides the exit code comes first."""
    groups: dict[tuple[str, str, str], list[Judgement]] = {}
    for item in judgements:
        groups.setdefault((item.op, item.verdict, item.family), []).append(item)
    urgency = (Exit.REGRESSION, Exit.INCONCLUSIVE, Exit.OK)
    ordered = sorted(groups.items())
    ordered.sort(key=lambda group: urgency.index(EXIT_CODES[group[1][0].verdict]))
    return [group for _, group in ordered]


def _counts(judgements: Iterable[Judgement]) -> dict[str, int]:
    """How many cases have each verdict; a case with several failures counts under each."""
    pairs = {(item.verdict, item.case_id) for item in judgements}
    return dict(sorted(Counter(str(verdict) for verdict, _ in pairs).items()))


def _sentence(code: Exit, cases: int, counts: dict[str, int]) -> str:
    """The outcome in one line; the counts are of cases."""
    worse = counts.get(Verdict.REGRESSION, 0) + counts.get(Verdict.LOST_CAPABILITY, 0)
    ran = cases - counts.get(Verdict.NOT_RUN, 0)
    told = {
        Exit.OK: f"no regression in {cases} cases",
        Exit.REGRESSION: f"regression in {worse} of {cases} cases",
        Exit.INTERRUPTED: f"interrupted, {ran} of {cases} cases ran in both arms",
        Exit.NOTHING_COMPARED: f"nothing compared, none of {cases} cases ran in either arm",
        Exit.INCONCLUSIVE: f"inconclusive, not all of {cases} cases could be judged",
    }
    listed = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    return f"Verdict: {told[code]}" + (f" ({listed})." if listed else ".")


def _item(group: list[Judgement], shrinker: Shrinker) -> dict[str, Any]:
    """What ``result.json`` says about the cases of one op with one verdict and one family."""
    cases = {item.case_id: item for item in group}
    # A fix is best shown by a case that head passes, since its replay then says so.
    shown = [case for case in cases if shrinker.passes(case)] or list(cases)
    smallest = min(shown if group[0].verdict == Verdict.FIXED else cases, key=shrinker.weight)
    first = cases[smallest]
    small = shrinker.smallest(first)
    return {
        "op": first.op,
        "verdict": str(first.verdict),
        "signature": small.judgement.signature,
        "family": first.family,
        "sentence": small.judgement.sentence,
        "evidence": small.judgement.evidence,
        "headroom": _largest_change(group),
        "cases": list(cases),
        "minimal_case": small.judgement.case_id,
        "minimal_summary": small.summary,
        "shrinking_exhausted": small.exhausted,
        "replay": f"parity replay {small.judgement.case_id}",
    }


def _largest_change(group: list[Judgement]) -> dict[str, list[float]]:
    """By tensor, the headroom before and after in the case where head uses most of the bound."""
    found: dict[str, list[float]] = {}
    for item in group:
        for tensor, (before, after) in item.headroom.items():
            if after >= found.get(tensor, [0.0, 0.0])[1]:
                found[tensor] = [before, after]
    return found


@dataclass(frozen=True)
class Small:
    """A failure in the smallest case found."""

    judgement: Judgement
    summary: str
    exhausted: bool


class Shrinker:
    """Shrinks regressions: head must still fail in this family, and base must still not."""

    def __init__(
        self, comparison: Comparison, judgements: Iterable[Judgement], seconds: float
    ) -> None:
        self.comparison = comparison
        self.deadline = time.monotonic() + seconds
        self.seen = [
            families([*comparison.records[arm].values(), *(pair[i] for pair in comparison.probes)])
            for i, arm in enumerate(("base", "head"))
        ]
        self.jobs = {case.id: (spec, case) for spec, case in comparison.jobs}
        self.judged: dict[str, list[Judgement]] = {}
        for item in judgements:
            self.judged.setdefault(item.case_id, []).append(item)
        self.found: list[Job] = []

    def weight(self, case_id: str) -> tuple[int, int, str]:
        """How involved a planned case is."""
        return weight(self.jobs[case_id][1])

    def passes(self, case_id: str) -> bool:
        """Whether head passes a planned case."""
        record = self.comparison.records["head"].get(case_id)
        return record is not None and record.status == "passed"

    def smallest(self, judgement: Judgement) -> Small:
        """The smallest case with the same regression, within what is left of the time."""
        spec, case = self.jobs[judgement.case_id]
        if judgement.verdict != Verdict.REGRESSION:
            return Small(judgement, summary(case), exhausted=False)
        left = self.deadline - time.monotonic()
        budget = Budget(seconds=min(30.0, left))

        def fails(case: Case) -> bool:
            return self._regression(spec, case, judgement.family) is not None

        known = (item for other, item in self.found if other is spec and fails(item))
        case = shrink(spec, next(known, case), fails, budget)
        if case.id not in self.jobs:
            self.found.append((spec, case))
        found = self._regression(spec, case, judgement.family) or judgement
        return Small(found, summary(case), budget.exhausted)

    def _regression(self, spec: OpSpec, case: Case, family: str) -> Judgement | None:
        """The regression of this family that a case shows, if it does."""
        if case.id not in self.judged:
            base, head = self.comparison.pair(spec, case)
            self.judged[case.id] = classify(spec.name, case.id, base, head, *self.seen)
        for item in self.judged[case.id]:
            if item.verdict == Verdict.REGRESSION and item.family == family:
                return item
        return None
