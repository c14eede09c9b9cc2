"""DRIFT is seen where it is and not where chance explains it."""

from __future__ import annotations

import random

import pytest

from parity.case import Case
from parity.gate.drift import ERROR, RATIO, at_least, drifts, marked
from parity.verdict import Judgement, Verdict

CASES = [
    Case("op", "plain", dtype, {"dim": 1, "tokens": 1}, seed=seed)
    for dtype in ("float32", "bfloat16")
    for seed in range(40)
]
BY_ID = {case.id: case for case in CASES}


def changed(case: Case, **headroom: tuple[float, float]) -> Judgement:
    return Judgement(Verdict.CHANGED_WITHIN_BOUND, "op", case.id, headroom=headroom)


def accused(judgements: list[Judgement]) -> set[tuple[str, str]]:
    return {drift.group[1:] for drift in drifts(judgements, BY_ID)}


def test_growth_in_one_dtype_is_seen_beside_another_that_hides_it() -> None:
    judgements = [
        changed(case, y=(0.3, 0.6) if case.dtype == "float32" else (0.99, 1.0)) for case in CASES
    ]
    assert accused(judgements) == {("y", "float32")}
    after = marked(judgements, BY_ID)
    assert [item.verdict for item in after] == [Verdict.DRIFT] * 40 + [
        Verdict.CHANGED_WITHIN_BOUND
    ] * 40
    assert after[0].family == "headroom | y | float32"
    assert after[0].signature == after[0].family
    assert after[0].headroom == {"y": (0.3, 0.6)}
    assert after[0].sentence.startswith(
        "y in float32 uses 2 times the share of its bound that it used (median of 40 cases that "
        "changed; in 40 more than 1.25 times; by chance in less than 2e-12 of harmless changes)."
    )


@pytest.mark.parametrize(
    "pair",
    [(0.6, 0.3), (0.5, 0.5), (0.5, 0.5 * RATIO), (0.0, 0.0)],
    ids=["better", "equal", "less than the ratio", "both exact"],
)
def test_an_honest_change_is_not_accused(pair: tuple[float, float]) -> None:
    assert accused([changed(case, y=pair) for case in CASES]) == set()


def test_a_drift_keeps_the_headroom_of_its_own_tensor_and_says_how_many_cases_it_saw() -> None:
    judgements = [changed(case, y=(0.3, 0.6), z=(0.5, 0.4)) for case in CASES[:20]]
    (found,) = drifts(judgements, BY_ID)
    assert (found.pairs, len(found.grew), found.ratio) == (20, 20, 2.0)
    assert [item.headroom for item in marked(judgements, BY_ID)] == [{"y": (0.3, 0.6)}] * 20


def test_what_was_exact_and_is_no_longer_grows() -> None:
    assert accused([changed(case, y=(0.0, 0.1)) for case in CASES]) == {
        ("y", "float32"),
        ("y", "bfloat16"),
    }


def test_a_few_cases_prove_nothing() -> None:
    assert accused([changed(case, y=(0.1, 0.9)) for case in CASES[:6]]) == set()
    assert accused([changed(case, y=(0.1, 0.9)) for case in CASES[:8]]) == {("y", "float32")}


def test_harmless_changes_are_accused_no_more_often_than_promised() -> None:
    """Two draws from one law for every case, in eight tensors: 300 gates, of which 1 % may fall."""
    draws = random.Random(0)
    gates = 0
    for _ in range(300):
        judgements = [
            changed(case, **{f"t{n}": (draws.random(), draws.random()) for n in range(4)})
            for case in CASES
        ]
        gates += bool(accused(judgements))
    assert gates <= 9  # more than three times as many as expected has a chance of 0.4 %


def test_the_tail_of_a_fair_coin() -> None:
    assert at_least(0, 10) == 1
    assert at_least(10, 10) == 2**-10
    assert at_least(5, 9) == 0.5
    assert 2 * 2**-7 > ERROR > 2**-7  # why seven cases are needed for one group, more for others
