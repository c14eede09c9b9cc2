"""Shrinking: small, legal, the same every time, and honest about its budget."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from parity.case import Case
from parity.catalog import resolve
from parity.generate import draw, is_legal, plan
from parity.shrink import Budget, shrink, siblings, summary, weight
from parity.spec import Input, OpSpec, Output

ROPE = resolve("parity")["fused_mla_rope_inplace"]
PLAIN = OpSpec(
    name="double",
    candidate="nowhere:double",
    reference="nowhere:double",
    inputs=(Input("x", "rows dim"),),
    outputs=(Output("y"),),
    axes={"dim": range(1, 65)},
)


def some_cases(layout: str, count: int = 20) -> list[Case]:
    return [case for case in plan(ROPE, 200, seed=3) if case.layout == layout][:count]


@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_what_always_fails_becomes_as_small_as_the_contract_allows(layout: str) -> None:
    for case in some_cases(layout):
        small = shrink(ROPE, case, lambda _: True, Budget(runs=10_000))
        assert is_legal(ROPE, small) == ""
        assert (small.dtype, small.table_dtype, small.seed) == ("float32", "float32", 0)
        assert small.axes["heads"] == 1
        assert (small.axes["nope_dim"], small.axes["rope_dim"]) == (0, 2)
        assert not any(small.flags.values())
        assert set(small.tile.values()) == {None}
        if layout == "thd":
            assert (small.lengths, small.gaps, small.tail) == ((1,), (0,), 0)
            assert (small.cp_size, small.cp_rank) == (1, 0)
        else:
            assert (small.axes["seq"], small.axes["batch"]) == (1, 1)


def needs(case: Case) -> bool:
    """A failure with several causes at once."""
    return case.axes["heads"] >= 3 and case.dtype == "bfloat16" and sum(case.lengths) >= 5


def test_the_causes_stay_and_nothing_else() -> None:
    guilty = [case for case in some_cases("thd", 200) if needs(case)]
    assert guilty
    for case in guilty[:10]:
        small = shrink(ROPE, case, needs, Budget(runs=10_000))
        assert (small.axes["heads"], small.dtype, sum(small.lengths)) == (3, "bfloat16", 5)
        assert small.axes["rope_dim"] == 2


def test_context_parallel_lengths_stay_legal() -> None:
    case = next(case for case in some_cases("thd", 200) if case.cp_size == 4)
    small = shrink(ROPE, case, lambda c: c.cp_size == 4, Budget(runs=10_000))
    assert (small.lengths, small.cp_rank) == ((8,), 0)


def test_the_same_every_time() -> None:
    case = draw(ROPE, random.Random(1))
    again = [shrink(ROPE, case, lambda c: c.axes["heads"] > 1, Budget(runs=10_000)) for _ in "ab"]
    assert again[0] == again[1]


def test_a_budget_is_kept_and_said() -> None:
    budget, asked = Budget(runs=3), []
    case = some_cases("thd")[0]
    assert shrink(ROPE, case, lambda c: bool(asked.append(c.id)), budget) == case
    assert len(asked) == 3
    assert budget.exhausted


def test_a_finished_search_is_not_called_exhausted() -> None:
    budget = Budget(runs=10_000)
    shrink(ROPE, some_cases("sbhd")[0], lambda _: True, budget)
    assert not budget.exhausted


def test_no_time_means_no_run() -> None:
    case = some_cases("sbhd")[0]
    budget = Budget(seconds=-1.0)
    assert shrink(ROPE, case, lambda _: True, budget) == case
    assert (budget.spent, budget.exhausted) == (0, True)


def test_never_heavier_and_each_case_once() -> None:
    case = max(some_cases("thd"), key=weight)
    asked: list[str] = []

    def still_fails(smaller: Case) -> bool:
        asked.append(smaller.id)
        return len(asked) % 3 == 0

    small = shrink(ROPE, case, still_fails, Budget(runs=500))
    assert weight(small)[0] <= weight(case)[0]
    assert len(asked) == len(set(asked))


def test_plain_layout() -> None:
    case = draw(PLAIN, random.Random(5))
    small = shrink(PLAIN, case, lambda _: True, Budget(runs=1000))
    assert small.axes == {"dim": 1, "tokens": 1}


def test_a_summary_names_sizes_and_unusual_choices() -> None:
    case = Case(
        "double",
        "thd",
        "float16",
        {"heads": 2},
        lengths=(4, 8),
        gaps=(0, 4),
        tail=1,
        cp_size=2,
        cp_rank=1,
        flags={"inverse": True, "rope_first": False},
        variants={"t": "sliced", "cos": "contiguous"},
    )
    text = "thd float16 heads=2 lengths=[4, 8] gaps=[0, 4] tail=1 cp=1 of 2 inverse=True t=sliced"
    assert summary(case) == text
    assert summary(Case("double", "plain", "float32", {"dim": 1})) == "plain float32 dim=1"


def test_siblings_keep_sizes_and_seed_and_make_the_rest_plain() -> None:
    case = next(c for c in plan(ROPE, 40, 3) if len(set(c.variants.values())) > 3)
    found = list(siblings(ROPE, case))
    for sibling in found:
        assert (sibling.axes["heads"], sibling.seed) == (case.axes["heads"], case.seed)
        assert not is_legal(ROPE, sibling)
    assert len({case.id, *(sibling.id for sibling in found)}) == 1 + len(found)
    for plain in found[-2:]:
        assert {v for n, v in plain.variants.items() if n.endswith(".grad")} == {"contiguous"}
    assert list(siblings(ROPE, found[-1])) == []


def test_what_an_arm_may_lack_is_left_out_alone() -> None:
    """Else a failure that needs its tile or its strides shows in no sibling that base can run."""
    case = next(
        c for c in plan(ROPE, 0, 0) if c.cp_size > 1 and c.flags["inverse"] and c.tile["tile"]
    )
    found = list(siblings(ROPE, case))
    assert replace(case, cp_size=1, cp_rank=0) in found
    assert replace(case, flags={**case.flags, "inverse": False}) in found
