"""What a pair of records says about a change: the verdict on each case and each failure.

Failures are compared by signature, never by counting passes: a failure that base shows as well is
not the fault of the change, and one that merely looks like it is not excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .cost import dearer, given_way
from .record import BANDS, Finding, Record
from .triage.signature import normalised
from .verdict import Judgement, Verdict, alone

OTHER_REFERENCE = (
    "The references of the two arms expect different results, so that each kernel was judged by "
    "another standard; review the change of the reference, then gate the kernel on its own."
)
GIVEN_WAY = (
    "Base launches Triton kernels here and head none, so that no kernel of head was compared; find "
    "out why it gives way to something else, or gate that on its own."
)
# Families of failures one arm shows: (op, family) to the ids of its cases and the size there.
Families = Mapping[tuple[str, str], Sequence[tuple[str, int]]]


def judge(
    ops: Mapping[str, str],
    base: Mapping[str, Record],
    head: Mapping[str, Record],
    probes: Iterable[tuple[Record, Record]] = (),
) -> list[Judgement]:
    """The verdicts on every planned case; ``ops`` maps case id to op, the arms id to record.

    ``probes`` are (base, head) records of other cases, which are evidence but get no verdict.
    """
    asked = list(probes)
    seen_base = families([*base.values(), *(pair[0] for pair in asked)])
    seen_head = families([*head.values(), *(pair[1] for pair in asked)])
    return [
        judgement
        for case_id, op in ops.items()
        for judgement in classify(
            op, case_id, base.get(case_id), head.get(case_id), seen_base, seen_head
        )
    ]


def families(records: Iterable[Record]) -> Families:
    """Which families of failures an arm shows, in which cases, and how large there."""
    seen: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for record in records:
        for finding in findings_of(record):
            place = (record.case_id, size_of(finding))
            seen.setdefault((record.op, finding.family), []).append(place)
    return seen


def size_of(finding: Finding) -> int:
    """The rank of a failure's band; a small known failure does not excuse a large one."""
    return BANDS.get(finding.band, 0)


def findings_of(record: Record) -> tuple[Finding, ...]:
    """The findings of a record; a lost process or a passed deadline counts as one.

    The signal is the size of the failure and not its kind: corrupted memory ends a process in
    more than one way.
    """
    if record.status == "crashed":
        sentence = f"The process that ran this case was lost: {record.reason}."
        return (Finding("runs", "process", "crashed", band=record.reason, sentence=sentence),)
    if record.status == "timeout":
        sentence = f"This case did not end in time: {record.reason}."
        return (Finding("runs", "process", "timeout", sentence=sentence),)
    return record.findings


def classify(
    op: str,
    case_id: str,
    base: Record | None,
    head: Record | None,
    seen_base: Families,
    seen_head: Families,
) -> list[Judgement]:
    """The verdicts on one case: one for each failure and, where the first run of both arms was
    clean, those on its bits and its cost; equal bits are no verdict beside a failure."""
    if base is None or head is None:
        missing = " and ".join(
            arm for arm, record in (("base", base), ("head", head)) if record is None
        )
        sentence = f"This case has no record in {missing}."
        return [Judgement(Verdict.NOT_RUN, op, case_id, sentence=sentence)]
    blank = Judgement(Verdict.IDENTICAL, op, case_id)
    for record in (base, head):
        if record.status == "infrastructure":
            return [_because(blank, Verdict.INFRASTRUCTURE, record.reason)]
    if base.inputs and head.inputs and base.inputs != head.inputs:
        sentence = "The two arms were given different inputs, so their results cannot be compared."
        return [_because(blank, Verdict.INCONCLUSIVE, sentence)]
    if base.expected and head.expected and base.expected != head.expected:
        return [_because(blank, Verdict.INCONCLUSIVE, OTHER_REFERENCE)]
    if "unsupported" in (base.status, head.status):
        return _capability(blank, base, head, seen_base) + _not_run(blank, head)
    beside = _hazards(blank, base, head) + _not_run(blank, head)
    found = (*findings_of(base), *findings_of(head))
    failures = _failures(blank, base, head, seen_base, seen_head) if found else []
    if not all(finding.further for finding in found):
        return failures + beside
    values = _values(blank, base, head)
    bits = [] if found and values.verdict == Verdict.IDENTICAL else [values]
    return [*failures, *bits, *_dearer(blank, base, head), *beside]


def _dearer(blank: Judgement, base: Record, head: Record) -> list[Judgement]:
    """A regression for every count of cost that grew, though all values are right; without its
    kernels the values of head say nothing about them."""
    if given_way(base.cost, head.cost):
        return [_because(blank, Verdict.INCONCLUSIVE, GIVEN_WAY)]
    return [
        _found(blank, Verdict.REGRESSION, Finding("cost", "", name), sentence)
        for name, sentence in dearer(base.cost, head.cost)
    ]


def _hazards(blank: Judgement, base: Record, head: Record) -> list[Judgement]:
    """What may go wrong by analysis, and in which arm; it struck in none, so nothing is accused."""
    arms = [{item.signature: item for item in record.hazards} for record in (base, head)]
    judgements = []
    for signature, finding in (arms[0] | arms[1]).items():
        where, ending = _where(signature in arms[0], signature in arms[1], base, head)
        judgement = _found(
            blank, Verdict.HAZARD, finding, f"In {where}, by analysis: {finding.sentence}"
        )
        judgements.append(replace(judgement, family=finding.family + ending))
    return judgements


def _where(in_base: bool, in_head: bool, base: Record, head: Record) -> tuple[str, str]:
    """Which arms show a hazard, and the ending of its family where one alone does."""
    if in_base and in_head:
        return "both", ""
    arm, other, name = ("head", base, "base") if in_head else ("base", head, "head")
    if any(finding.check == "runs" for finding in findings_of(other)):
        return f"{arm}, while {name} raised before", ""
    return f"{arm} only", alone(arm)


def _not_run(blank: Judgement, head: Record) -> list[Judgement]:
    """What this tier checks and could not check of head, which is no pass."""
    return [
        _found(
            blank,
            Verdict.NOT_RUN,
            Finding(gap.partition(": ")[0], "", "not run"),
            f"Not checked, {gap}.",
        )
        for gap in head.gaps()
    ]


def _because(blank: Judgement, verdict: Verdict, reason: str, sentence: str = "") -> Judgement:
    """A verdict on a case as a whole; those with one reason, but for its numbers, are alike."""
    family = normalised(reason)
    return replace(blank, verdict=verdict, family=family, sentence=sentence or reason)


def _values(blank: Judgement, base: Record, head: Record) -> Judgement:
    if not base.digests and not head.digests:
        return _because(blank, Verdict.INCONCLUSIVE, "Neither arm recorded an output to compare.")
    if base.digests == head.digests:
        return blank
    names = sorted(base.digests | head.digests)
    changed = [name for name in names if base.digests.get(name) != head.digests.get(name)]
    headroom = {
        name: (base.headroom[name], head.headroom[name])
        for name in changed
        if name in base.headroom and name in head.headroom
    }
    sentence = f"The bits of {', '.join(changed)} differ, and both arms keep the bound."
    return replace(
        blank, verdict=Verdict.CHANGED_WITHIN_BOUND, headroom=headroom, sentence=sentence
    )


def _capability(
    blank: Judgement, base: Record, head: Record, seen_base: Families
) -> list[Judgement]:
    if head.status == base.status:
        return [_because(blank, Verdict.UNSUPPORTED, head.reason)]
    if head.status == "unsupported":
        sentence = f"Base could run this, head cannot: {head.reason}"
        return [_because(blank, Verdict.LOST_CAPABILITY, head.reason, sentence)]
    failures = _by_signature(head).values()
    judgements = [_new_failure(blank, finding, seen_base) for finding in failures]
    if all(finding.further for finding in failures):
        does = "fails in a further run only" if failures else "passes"
        sentence = f"Head {does} where base could not run: {base.reason}"
        judgements.append(_because(blank, Verdict.NEW_CAPABILITY, base.reason, sentence))
    return judgements


def _new_failure(blank: Judgement, finding: Finding, seen_base: Families) -> Judgement:
    evidence = _elsewhere(blank, finding, seen_base)
    if evidence:
        verdict = Verdict.NEW_TEST_BASE_CAUSE
        return _found(blank, verdict, finding, finding.sentence, evidence)
    sentence = f"New in head and wrong: {finding.sentence}"
    return _found(blank, Verdict.REGRESSION, finding, sentence)


def _failures(
    blank: Judgement, base: Record, head: Record, seen_base: Families, seen_head: Families
) -> list[Judgement]:
    in_base, in_head = _by_signature(base), _by_signature(head)
    known = {finding.family for finding in in_base.values()}
    known &= {finding.family for finding in in_head.values()}
    judgements = []
    for signature, finding in (in_base | in_head).items():
        if signature in in_base and signature in in_head:
            judgement = _found(blank, Verdict.PRE_EXISTING, finding, finding.sentence)
        elif finding.family in known and not _largest(finding, in_base, in_head):
            where = "head" if signature in in_head else "base"
            sentence = f"Fails in both, but not alike; in {where}: {finding.sentence}"
            judgement = _found(blank, Verdict.PRE_EXISTING_CHANGED, finding, sentence)
        elif signature in in_head:
            judgement = _one_sided(blank, Verdict.REGRESSION, finding, base, seen_base)
        else:
            judgement = _one_sided(blank, Verdict.FIXED, finding, head, seen_head)
        judgements.append(judgement)
    return judgements


def _largest(finding: Finding, *arms: Mapping[str, Finding]) -> bool:
    """Whether one of two arms that both fail like this does so at this size: it grew or shrank."""
    alike = [[f for f in arm.values() if f.family == finding.family] for arm in arms]
    reached = [max(map(size_of, findings)) for findings in alike]
    return min(reached) < size_of(finding)


def _one_sided(
    blank: Judgement, verdict: Verdict, finding: Finding, other: Record, seen: Families
) -> Judgement:
    """A failure of one arm only; excused if the other arm got stuck before it could show it."""
    evidence = _elsewhere(blank, finding, seen) if _hides(other, finding) else ""
    if evidence:
        return _found(blank, Verdict.PRE_EXISTING, finding, finding.sentence, evidence)
    return _found(blank, verdict, finding, finding.sentence)


def hidden(judgement: Judgement, base: Record, head: Record) -> bool:
    """Whether a failure of one arm rests on a check that the other arm never came to."""
    sides = {Verdict.REGRESSION: (head, base), Verdict.FIXED: (base, head)}
    if judgement.verdict not in sides:
        return False
    shown, other = sides[judgement.verdict]
    if other.status == "unsupported":
        return True
    finding = _by_signature(shown).get(judgement.signature)
    return finding is not None and _hides(other, finding)


def _hides(record: Record, finding: Finding) -> bool:
    """Whether this arm raised (or was lost) before it could show ``finding``.

    An arm that raised in backward has shown its outputs, which then have digests.  A check that
    calls the candidate again (its name has a colon) runs in few cases, and only in clean ones.
    """
    if finding.further:
        return finding.check not in record.checks
    raised = {item.tensor for item in findings_of(record) if item.check == "runs"}
    shown = {"forward", *record.digests} if raised == {"backward"} else set()
    return bool(raised) and finding.tensor not in shown


def _elsewhere(blank: Judgement, finding: Finding, seen: Families) -> str:
    """Another case of the op where the arm fails alike and as much, or an empty string."""
    places = seen.get((blank.op, finding.family), ())
    large = (case for case, size in places if case != blank.case_id and size >= size_of(finding))
    return next(large, "")


def _found(
    blank: Judgement, verdict: Verdict, finding: Finding, sentence: str, evidence: str = ""
) -> Judgement:
    return replace(
        blank,
        verdict=verdict,
        signature=finding.signature,
        family=finding.family,
        sentence=sentence,
        evidence=evidence,
        size=size_of(finding),
    )


def _by_signature(record: Record) -> dict[str, Finding]:
    return {finding.signature: finding for finding in findings_of(record)}
