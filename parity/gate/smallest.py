"""The smallest case that still shows a regression: head fails in this family, base does not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ..case import Case
from ..isolation import Job
from ..judging import classify, families
from ..shrink import Budget, shrink, summary, weight
from ..spec import OpSpec
from ..traffic import is_traffic
from ..verdict import Judgement, Verdict
from .comparison import Comparison


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
        self.cases = comparison.cases
        self.jobs = {case.id: (spec, case) for spec, case in comparison.jobs}
        self.judged: dict[str, list[Judgement]] = {}
        for item in judgements:
            self.judged.setdefault(item.case_id, []).append(item)
        self.found: list[Job] = []

    def weight(self, case_id: str) -> tuple[int, int, str]:
        """How involved a planned case is."""
        return weight(self.cases[case_id])

    def passes(self, case_id: str) -> bool:
        """Whether head passes a planned case."""
        record = self.comparison.records["head"].get(case_id)
        return record is not None and record.status == "passed"

    def smallest(self, judgement: Judgement) -> Small:
        """The smallest case with the same regression, within what is left of the time."""
        case = self.cases[judgement.case_id]
        if judgement.verdict != Verdict.REGRESSION or is_traffic(judgement):
            return Small(judgement, summary(case), exhausted=False)
        spec = self.jobs[case.id][0]
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
