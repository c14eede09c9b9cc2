"""Whether a verdict rests on chance: its case runs again in both arms.

A repeat never turns a failure into a pass.  It shows that a failure comes and goes, or that bits
differ from run to run; then two single runs prove nothing, and that is the verdict.  If one arm
fails so much more often that equal rates are implausible, the change stays to blame.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..judging import findings_of, size_of
from ..record import Finding, Record
from ..shrink import weight
from ..verdict import BOTH_FAIL, Judgement, Verdict
from .chance import CONFIDENCE, interval, more_often
from .comparison import Comparison

FEW = 5  # equal runs that settle it: 5 of 5 against 0 of 5 has a chance of 0.4 % if rates are equal
MANY = 20  # runs of each arm that comes and goes
CHANCE = 0.01
SECONDS = 60.0  # for all verdicts of a run together

Group = tuple[str, str, str]


@dataclass(frozen=True)
class Tally:
    """In how many of its runs an arm showed something."""

    shown: int
    runs: int

    @property
    def steady(self) -> bool:
        """Whether all runs agree."""
        return self.shown in (0, self.runs)

    def __str__(self) -> str:
        low, high = interval(self.shown, self.runs)
        rates = f"{100 * low:.0f} % to {100 * high:.0f} %"
        return f"{self.shown} of {self.runs} runs ({CONFIDENCE:.0%} confidence: {rates})"


def settled(comparison: Comparison, judgements: list[Judgement]) -> list[Judgement]:
    """The judgements, NONDETERMINISTIC where runs of one case differ by chance."""
    deadline = time.monotonic() + SECONDS
    groups: dict[Group, list[Judgement]] = {}
    for item in judgements:
        if _may_be_chance(item) and _rests_on_its_case(comparison, item):
            groups.setdefault(_group(item), []).append(item)
    tallies = {
        group: _tallies(comparison, min(items, key=lambda i: weight(comparison.cases[i.case_id])))
        for group, items in groups.items()
        if time.monotonic() < deadline
    }
    asked = ((item, tallies.get(_group(item))) for item in judgements)
    return [judged(item, *found) if found else item for item, found in asked]


def _group(item: Judgement) -> Group:
    return item.op, item.verdict, item.family


def _may_be_chance(item: Judgement) -> bool:
    """Verdicts that one run can give by chance; a timeout is too long to wait for again."""
    if item.family.endswith("timeout"):
        return False
    single = (Verdict.REGRESSION, Verdict.FIXED, Verdict.CHANGED_WITHIN_BOUND)
    return item.verdict in single or _comes_and_goes(item)


def _rests_on_its_case(comparison: Comparison, item: Judgement) -> bool:
    """Whether its case shows it; growth of traffic, say, is seen in several cases together."""
    records = [comparison.records[arm].get(item.case_id) for arm in ("base", "head")]
    findings = [finding for record in records if record for finding in findings_of(record)]
    return not item.family or any(_as_large(finding, item) for finding in findings)


def _comes_and_goes(item: Judgement) -> bool:
    return item.verdict in BOTH_FAIL and item.family.endswith("nondeterministic")


def _tallies(comparison: Comparison, item: Judgement) -> tuple[Tally, Tally]:
    """What base and head show in a few runs, or in many if those differ."""
    for runs in (FEW, MANY):
        found = comparison.repeat(item.case_id, runs)
        base, head = (_tally(item, found[arm]) for arm in ("base", "head"))
        if base.steady and head.steady:
            break
    return base, head


def _tally(item: Judgement, records: list[Record]) -> Tally:
    """How often a failure shows as large as here, or other bits than in the first run."""
    if item.verdict == Verdict.CHANGED_WITHIN_BOUND:
        first, *others = records
        return Tally(sum(other.digests != first.digests for other in others), len(others))
    shown = sum(any(_as_large(f, item) for f in findings_of(record)) for record in records)
    return Tally(shown, len(records))


def _as_large(finding: Finding, item: Judgement) -> bool:
    return finding.family == item.family and size_of(finding) >= item.size


def judged(item: Judgement, base: Tally, head: Tally) -> Judgement:
    """What the repeats leave of a verdict."""
    if item.verdict == Verdict.CHANGED_WITHIN_BOUND:
        if not base.shown + head.shown:
            return item
        what = "The bits differ from run to run"
    elif _comes_and_goes(item):
        what = "Both arms differ from run to run"
    else:
        more, less = (head, base) if item.verdict == Verdict.REGRESSION else (base, head)
        if more.shown == more.runs and not less.shown:
            return item
        if more_often(more.shown, more.runs, less.shown, less.runs) <= CHANCE:
            return replace(item, sentence=f"{item.sentence} {_rates(base, head)}")
        what = "A failure comes and goes"
    told = f" {item.sentence}" if item.signature else ""
    sentence = f"{what}, so that one run of each arm proves nothing. {_rates(base, head)}{told}"
    return replace(item, verdict=Verdict.NONDETERMINISTIC, sentence=sentence)


def _rates(base: Tally, head: Tally) -> str:
    return f"It shows in {head} of head and in {base} of base."
