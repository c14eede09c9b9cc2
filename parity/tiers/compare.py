"""One case on two tiers: do they say the same of it?  Pure; records in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..judging import findings_of
from ..record import Finding, Record
from ..verdict import EXIT_CODES, Exit, Verdict

# A case that fails on both tiers is no doubt about the tiers; it is a wrong kernel.
CODES = EXIT_CODES | {Verdict.PRE_EXISTING: Exit.REGRESSION}


@dataclass(frozen=True)
class Pair:
    """What two records of one case say together."""

    case_id: str
    op: str
    verdict: Verdict
    sentence: str = ""


def compare(here: Iterable[Record], there: Iterable[Record]) -> list[Pair]:
    """A verdict for every case of ``here``, by the record of ``there`` with its id."""
    known = {record.case_id: record for record in there}
    return [_pair(record, known.get(record.case_id)) for record in here]


def exit_code(verdicts: Iterable[Verdict], codes: Mapping[Verdict, Exit] = CODES) -> Exit:
    """A wrong kernel outranks a doubt, a doubt a pass; nothing that both support is no result."""
    found = set(verdicts)
    if found <= {Verdict.UNSUPPORTED}:
        return Exit.NOTHING_COMPARED
    told = {codes[verdict] for verdict in found}
    return next(code for code in (Exit.REGRESSION, Exit.INCONCLUSIVE, Exit.OK) if code in told)


def _pair(here: Record, there: Record | None) -> Pair:
    verdict, sentence = _judge(here, there)
    return Pair(here.case_id, here.op, verdict, sentence)


def _judge(here: Record, there: Record | None) -> tuple[Verdict, str]:
    if there is None:
        return Verdict.NOT_RUN, "The other records hold no such case."
    for record in (here, there):
        if record.status == "infrastructure":
            return Verdict.INFRASTRUCTURE, record.reason
    if here.inputs and there.inputs and here.inputs != there.inputs:
        return Verdict.INCONCLUSIVE, (
            "The two machines were given different inputs, so their results cannot be merged; "
            "run both with one version of Parity."
        )
    unsupported = [record.status == "unsupported" for record in (here, there)]
    if any(unsupported):
        reason = here.reason if unsupported[0] else there.reason
        return (Verdict.UNSUPPORTED if all(unsupported) else Verdict.NOT_RUN), reason
    return _results(here, there)


def _results(here: Record, there: Record) -> tuple[Verdict, str]:
    """Whether both pass, one or none.  The oracle's digests are not compared: the order in which a
    device sums in float64 shows in a few of them."""
    failures = findings_of(here), findings_of(there)
    if not any(failures):
        same = here.digests == there.digests
        verdict = Verdict.IDENTICAL if same else Verdict.CHANGED_WITHIN_BOUND
        return verdict, "" if same else "Other bits, within the bound on both tiers."
    if all(failures):
        return Verdict.PRE_EXISTING, f"Fails on both tiers: {failures[0][0].sentence}"
    failing, passing = ("here", there) if failures[0] else ("there", here)
    found = failures[0] or failures[1]
    if _only_there(found, passing):
        return Verdict.PRE_EXISTING, f"Fails {failing} in a check of that tier: {found[0].sentence}"
    other = "there" if failing == "here" else "here"
    return Verdict.TIERS_DISAGREE, f"Right {other}, wrong {failing}: {found[0].sentence}"


def _only_there(findings: tuple[Finding, ...], passing: Record) -> bool:
    """Whether the tier that passes has none of the checks that the other fails."""
    asked = {finding.check for finding in findings} - {"runs"}
    return bool(asked) and not asked & set(passing.checks)
