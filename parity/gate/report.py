"""The end of a gate: verdicts, the smallest failing cases, ``result.json``."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..case import Case
from ..coverage import covered
from ..spec import OpSpec
from ..verdict import EXIT_CODES, Exit, Judgement, Verdict, exit_code
from .comparison import Comparison
from .drift import marked
from .repeats import settled
from .smallest import Shrinker

SHRINK_SECONDS = 90.0  # for all regressions of a run together
URGENCY = (Exit.REGRESSION, Exit.INCONCLUSIVE, Exit.OK)
UNCHANGED = {  # what a case of an op may be whose every number is the same
    Verdict.IDENTICAL, Verdict.PRE_EXISTING, Verdict.UNSUPPORTED, Verdict.HAZARD, Verdict.NOT_RUN,
    Verdict.INFRASTRUCTURE,
}  # fmt: skip


def conclude(
    comparison: Comparison, generated: list[dict[str, Any]], *, interrupted: bool = False
) -> dict[str, Any]:
    """Judge what has run, shrink the regressions, write ``result.json`` and return its content.

    ``generated`` are the items about generated code (:mod:`parity.gate.generated`).
    """
    may_ask = comparison.both_run and not interrupted
    if may_ask:
        comparison.ask_siblings()
    today = datetime.datetime.now(datetime.UTC).date()
    judgements = [comparison.unseen(item) for item in comparison.judgements()]
    if not interrupted:
        judgements = settled(comparison, judgements)
    judgements = marked(judgements, comparison.cases)
    judgements = comparison.known.applied(judgements, today)
    generated = [item for item in generated if not _contradicted(item, judgements)]
    of_code = comparison.known.applied([_judgement(item) for item in generated], today)
    generated = [
        item | {"known": judged.known} for item, judged in zip(generated, of_code, strict=True)
    ]
    worse = [item for item in of_code if item.counted == Verdict.REGRESSION]
    counted = [item.counted for item in judgements] + [Verdict.REGRESSION] * bool(worse)
    code = Exit.INTERRUPTED if interrupted else exit_code(counted)
    shrinker = Shrinker(comparison, judgements, SHRINK_SECONDS if may_ask else 0.0)
    counts = _counts(judgements)
    by_op = {op: _counts(i for i in judgements if i.op == op) for op in _ops(comparison)}
    described = comparison.run.document("run")
    if not described:
        raise comparison.run.removed()
    result = {
        "run": comparison.run.id,
        "exit_code": int(code),
        "sentence": _sentence(code, len(comparison.ops), judgements, len(worse)),
        "arms": described["arms"],
        "cases": described["cases"],
        "counts": counts,
        "ops": by_op,
        "coverage": _coverage(comparison),
        "known_issues": comparison.known.states([*judgements, *of_code], today),
        "items": _urgent_first(
            [*generated, *(_item(group, shrinker) for group in _groups(judgements))]
        ),
    }
    comparison.run.write("result", result)
    return result


def _contradicted(item: dict[str, Any], judgements: Iterable[Judgement]) -> bool:
    """Whether an item says that nothing of an op changes and one of its cases did: the calls that
    were compiled are few, and another flag or stride takes another way through the wrapper."""
    proof = item["verdict"] == Verdict.GENERATED_CODE_IDENTICAL
    return proof and any(
        judged.op == item["op"] and judged.verdict not in UNCHANGED for judged in judgements
    )


def _urgent_first(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What decides the exit code comes first, else as they were."""

    def rank(item: dict[str, Any]) -> int:
        return URGENCY.index(Exit.OK if item["known"] else EXIT_CODES[Verdict(item["verdict"])])

    return sorted(items, key=rank)


def _judgement(item: dict[str, Any]) -> Judgement:
    """An item about generated code, as known issues are looked for."""
    verdict, case_id = Verdict(item["verdict"]), item["minimal_case"]
    return Judgement(verdict, item["op"], case_id, item["signature"], item["family"])


def _ops(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(comparison.ops.values()))


def _coverage(comparison: Comparison) -> dict[str, Any]:
    """By op, what the cases covered that ran in both arms; one arm's skip compares nothing."""
    ran: dict[str, tuple[OpSpec, list[Case]]] = {}
    for spec, case in comparison.jobs:
        cases = ran.setdefault(spec.name, (spec, []))[1]
        records = [found.get(case.id) for found in comparison.records.values()]
        if all(record and record.status in ("passed", "failed") for record in records):
            cases.append(case)
    return {name: covered(spec, cases) for name, (spec, cases) in ran.items()}


def _groups(judgements: Iterable[Judgement]) -> list[list[Judgement]]:
    """Failures of one op, verdict and family together."""
    groups: dict[tuple[str, str, str, str], list[Judgement]] = {}
    for item in judgements:
        groups.setdefault((item.op, item.verdict, item.family, item.known), []).append(item)
    return [group for _, group in sorted(groups.items())]


def _counts(judgements: Iterable[Judgement]) -> dict[str, int]:
    """How many cases have each verdict; a case with several failures counts under each."""
    pairs = {(item.verdict, item.case_id) for item in judgements}
    return dict(sorted(Counter(str(verdict) for verdict, _ in pairs).items()))


def _sentence(code: Exit, cases: int, judgements: list[Judgement], code_worse: int) -> str:
    """The outcome in one line; the counts are of cases, ``code_worse`` of regressions of code."""
    counts = _counts(judgements)
    # a NOT_RUN with a signature is of checks that were not made in a case that ran
    missing = {i.case_id for i in judgements if i.verdict == Verdict.NOT_RUN and not i.signature}
    identical = counts.get(Verdict.IDENTICAL, 0)
    bad = {i.case_id for i in judgements if EXIT_CODES[i.counted] == Exit.REGRESSION}
    unchanged = f", no numeric change in {identical} of them" if identical else ""
    told = {
        Exit.OK: f"no regression in {cases} cases{unchanged}",
        Exit.REGRESSION: f"regression in {len(bad)} of {cases} cases"
        + (" and in the generated code" if code_worse else ""),
        Exit.INTERRUPTED: f"interrupted, {cases - len(missing)} of {cases} cases ran in both arms",
        Exit.NOTHING_COMPARED: f"nothing compared, none of {cases} cases ran in either arm",
        Exit.INCONCLUSIVE: f"inconclusive, not all of {cases} cases could be judged",
    }
    if identical == cases and code == Exit.OK:
        told[code] = f"no numeric change in {cases} cases"
    listed = [f"{verdict} {count}" for verdict, count in counts.items()]
    if known := len({item.case_id for item in judgements if item.known}):
        listed.append(f"known {known}")
    return f"Verdict: {told[code]}" + (f" ({', '.join(listed)})." if listed else ".")


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
        "known": first.known,
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
