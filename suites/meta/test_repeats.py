"""What comes and goes is neither a regression nor a pass; what only head does is a regression."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parity.case import Case
from parity.gate.chance import interval, more_often
from parity.gate.comparison import Comparison
from parity.gate.repeats import Tally, judged, settled
from parity.record import Record
from parity.runs import Run
from parity.spec import Input, OpSpec, Output
from parity.verdict import EXIT_CODES, Exit, Judgement, Verdict

FAMILY = "effect:repeats | y | nondeterministic"


def judgement(verdict: Verdict, family: str = "values | y | wrong") -> Judgement:
    return Judgement(verdict, "op", "case", family, family, "Wrong.")


@pytest.mark.parametrize(
    ("before", "base", "head", "after"),
    [
        (Verdict.REGRESSION, (0, 5), (5, 5), Verdict.REGRESSION),
        (Verdict.REGRESSION, (0, 20), (7, 20), Verdict.REGRESSION),
        (Verdict.REGRESSION, (0, 20), (5, 20), Verdict.NONDETERMINISTIC),
        (Verdict.REGRESSION, (6, 20), (9, 20), Verdict.NONDETERMINISTIC),
        (Verdict.REGRESSION, (0, 1), (12, 20), Verdict.NONDETERMINISTIC),
        (Verdict.REGRESSION, (0, 1), (5, 5), Verdict.REGRESSION),
        (Verdict.FIXED, (5, 5), (0, 5), Verdict.FIXED),
        (Verdict.FIXED, (7, 20), (0, 20), Verdict.FIXED),
        (Verdict.FIXED, (9, 20), (6, 20), Verdict.NONDETERMINISTIC),
        (Verdict.CHANGED_WITHIN_BOUND, (0, 4), (0, 4), Verdict.CHANGED_WITHIN_BOUND),
        (Verdict.CHANGED_WITHIN_BOUND, (0, 19), (1, 19), Verdict.NONDETERMINISTIC),
        (Verdict.CHANGED_WITHIN_BOUND, (3, 19), (0, 19), Verdict.NONDETERMINISTIC),
    ],
)
def test_what_repeats_leave_of_a_verdict(
    before: Verdict, base: tuple[int, int], head: tuple[int, int], after: Verdict
) -> None:
    assert judged(judgement(before), Tally(*base), Tally(*head)).verdict == after


def test_arms_that_both_differ_from_run_to_run_are_not_compared() -> None:
    for verdict in (Verdict.PRE_EXISTING, Verdict.NEW_TEST_BASE_CAUSE):
        found = judged(judgement(verdict, FAMILY), Tally(20, 20), Tally(20, 20))
        assert found.verdict == Verdict.NONDETERMINISTIC


def test_the_sentence_states_rates_and_confidence() -> None:
    found = judged(judgement(Verdict.REGRESSION), Tally(5, 20), Tally(8, 20))
    assert "8 of 20 runs (95% confidence: 19 % to 64 %) of head" in found.sentence
    assert "5 of 20 runs (95% confidence: 9 % to 49 %) of base" in found.sentence
    assert found.sentence.endswith("Wrong.")


def test_no_repeat_makes_a_pass() -> None:
    """However rarely a failure shows again, the exit code is not that of a pass."""
    for hits in range(21):
        found = judged(judgement(Verdict.REGRESSION), Tally(0, 20), Tally(hits, 20))
        assert EXIT_CODES[found.verdict] != Exit.OK


@pytest.mark.parametrize(
    ("hits", "runs", "low", "high"),
    [(0, 20, 0.0, 0.1684), (10, 20, 0.2720, 0.7280), (20, 20, 0.8316, 1.0), (1, 5, 0.0051, 0.7164)],
)
def test_intervals_are_those_of_the_tables(hits: int, runs: int, low: float, high: float) -> None:
    assert interval(hits, runs) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("hits", "other", "chance"), [((5, 5), (0, 5), 1 / 252), ((3, 4), (1, 4), 17 / 70)]
)
def test_fisher(hits: tuple[int, int], other: tuple[int, int], chance: float) -> None:
    """The second is the lady tasting tea."""
    assert more_often(*hits, *other) == pytest.approx(chance)


def test_what_no_single_case_shows_is_not_repeated(tmp_path: Path) -> None:
    """Growth over several cases shows in no repeat of one, which would take its verdict away."""
    spec = OpSpec("op", "a:f", "a:f", (Input("x", "rows"),), (Output("y"),), {})
    case = Case("op", "plain", "float32", {"tokens": 1})
    passed = Record(case.id, "op", "head", "passed", checks=("values",), digests={"y": "d"})
    comparison = Comparison(Run.create(tmp_path), {}, [(spec, case)])
    for records in comparison.records.values():
        records[case.id] = passed
    grown = replace(judgement(Verdict.REGRESSION, "traffic | loads grow"), case_id=case.id)
    assert settled(comparison, [grown]) == [grown]
