"""DRIFT: a change after which results use systematically more of their bounds.

One case says nothing: whichever way a lane is rounded, its headroom moves up or down by chance.  So
the two headrooms of each case are compared, and the cases of one op, tensor and dtype are counted:
another dtype has another bound, and one that its last rounding uses up would hide the others.

The test is the one-sided sign test for a median ratio above ``RATIO``.  If the change is harmless,
each ratio is as likely above 1 as below, so that at most half of them lie above ``RATIO`` and
the number that do is at most Binomial(n, 1/2).  Equal headrooms are no evidence and are left out.
The chance to accuse any of the m groups of a harmless change is at most ``ERROR``, since each is
held to ``ERROR`` / m (Bonferroni).  It does not depend on ``RATIO``, which says what matters: a
quarter more of the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import comb, inf
from statistics import median

from ..case import Case
from ..verdict import Judgement, Verdict

ERROR = 0.01
RATIO = 1.25

Group = tuple[str, str, str]


@dataclass(frozen=True)
class Drift:
    """A tensor whose bounds are used up further: ``grew`` of ``pairs`` cases, by case id."""

    group: Group
    grew: frozenset[str]
    pairs: int
    ratio: float
    chance: float

    @property
    def sentence(self) -> str:
        """What grew, by how much, and how sure that is."""
        _, tensor, dtype = self.group
        return (
            f"{tensor} in {dtype} uses {self.ratio:.3g} times the share of its bound that it used "
            f"(median of {self.pairs} cases that changed; in {len(self.grew)} more than {RATIO} "
            f"times; by chance in less than {self.chance:.1g} of harmless changes)."
        )


def drifts(judgements: Iterable[Judgement], cases: Mapping[str, Case]) -> list[Drift]:
    """The groups whose headroom grew by more than chance and ``RATIO`` explain."""
    groups: dict[Group, dict[str, float]] = {}
    for item in judgements:
        for tensor, (before, after) in item.headroom.items():
            if before != after:
                group = (item.op, tensor, cases[item.case_id].dtype)
                groups.setdefault(group, {})[item.case_id] = after / before if before else inf
    return [
        drift for group, ratios in groups.items() if (drift := _drift(group, ratios, len(groups)))
    ]


def _drift(group: Group, ratios: Mapping[str, float], groups: int) -> Drift | None:
    grew = frozenset(case_id for case_id, ratio in ratios.items() if ratio > RATIO)
    chance = groups * at_least(len(grew), len(ratios))
    if chance > ERROR:
        return None
    return Drift(group, grew, len(ratios), median(ratios.values()), chance)


def at_least(hits: int, trials: int) -> float:
    """The chance of so many heads in so many throws of a fair coin."""
    ways = sum(comb(trials, count) for count in range(hits, trials + 1))
    return float(ways / 2**trials)


def marked(judgements: list[Judgement], cases: Mapping[str, Case]) -> list[Judgement]:
    """The judgements, with DRIFT for every case and tensor that shows one."""
    found = drifts(judgements, cases)
    return [after for item in judgements for after in (*_marked(item, found),) or (item,)]


def _marked(item: Judgement, found: list[Drift]) -> Iterator[Judgement]:
    for drift in found:
        op, tensor, dtype = drift.group
        if item.op == op and item.case_id in drift.grew and tensor in item.headroom:
            kind = f"headroom | {tensor} | {dtype}"
            headroom = {tensor: item.headroom[tensor]}
            yield replace(
                item,
                verdict=Verdict.DRIFT,
                signature=kind,
                family=kind,
                sentence=drift.sentence,
                headroom=headroom,
            )
