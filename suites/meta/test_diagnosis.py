"""Where a mismatch is said to sit, and whether it is said to be rounding: planted and honest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.case import Case
from parity.generate import plan
from parity.locus import numbers, words
from parity.record import Finding
from parity.runner import run_case
from parity.spec import Input, OpSpec, Output
from suites.meta import blend

Tensor = torch.Tensor
LANES = torch.tensor([False, False, True, True, True, True])  # four rotated ones behind two others
ALL = slice(None)
EVEN, ODD, LEFT, RIGHT = [2, 4], [3, 5], [2, 3], [4, 5]


def packed(tile: int | None = 4) -> Case:
    """Three sequences of 3, 0 and 2 tokens, padding behind the first, and a tail: 8 tokens."""
    return Case("op", "thd", "float32", {"heads": 6}, lengths=(3, 0, 2), gaps=(2, 0, 0), tail=1,
                tile={"BLOCK_H": tile})  # fmt: skip


def told(tokens: Any, heads: Any, lanes: Any, case: Case, spared: Any = ()) -> str:
    """The words for a mismatch in every combination of these indices, ``spared`` ones left out."""
    where = torch.zeros(8, 6, 6, dtype=torch.bool)
    where[tokens] = True
    for axis, kept in ((1, heads), (2, lanes)):
        mask = torch.zeros(6, dtype=torch.bool)
        mask[kept] = True
        where &= mask.view(-1, 1) if axis == 1 else mask
    for place in spared:
        where[place] = False
    return words(where, LANES.expand(8, 6, 6), case, by_row=True)


@pytest.mark.parametrize(
    ("tokens", "heads", "lanes", "expected"),
    [
        (ALL, ALL, ALL, "rotated and copied lanes, all heads, all rows"),
        (ALL, ALL, [0, 1], "copied lanes, all heads, all rows"),
        (ALL, [4, 5], [2, 3, 4, 5], "rotated lanes, heads of the partial tile, all rows"),
        (ALL, ALL, ODD, "odd rotated lanes, all heads, all rows"),
        (ALL, ALL, EVEN, "even rotated lanes, all heads, all rows"),
        (ALL, ALL, LEFT, "left half of the rotated lanes, all heads, all rows"),
        (ALL, ALL, RIGHT, "right half of the rotated lanes, all heads, all rows"),
        (ALL, ALL, [1, 2], "some rotated and copied lanes, all heads, all rows"),
        (ALL, [0], [0, 1], "copied lanes, the first head, all rows"),
        (ALL, [1, 2, 3, 4, 5], [0, 1], "copied lanes, heads after the first, all rows"),
        (ALL, [5], [0, 1], "copied lanes, the last head, all rows"),
        (ALL, [0, 2, 4], [0, 1], "copied lanes, even heads, all rows"),
        (ALL, [1, 2], [0, 1], "copied lanes, some heads, all rows"),
        ([5, 6], ALL, [0, 1], "copied lanes, all heads, sequences after the first"),
        (
            [6],
            ALL,
            [0, 1],
            "copied lanes, all heads, sequences after the first, past its first row",
        ),
        ([0, 1, 2], ALL, [0, 1], "copied lanes, all heads, the first sequence"),
        ([0, 1, 2, 5, 6], ALL, [0, 1], "copied lanes, all heads, every sequence"),
        ([1, 2, 6], ALL, [0, 1], "copied lanes, all heads, every sequence, past its first row"),
        ([0, 5], ALL, [0, 1], "copied lanes, all heads, first rows of sequences"),
        ([3, 4, 7], ALL, [0, 1], "copied lanes, all heads, rows of no sequence"),
        ([7], ALL, [0, 1], "copied lanes, all heads, the last row"),
        ([1, 5], ALL, [0, 1], "copied lanes, all heads, some rows"),
    ],
)
def test_a_place_has_the_words_of_its_pattern(
    tokens: Any, heads: Any, lanes: Any, expected: str
) -> None:
    assert told(tokens, heads, lanes, packed()) == expected


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        (ALL, "all lanes"),
        ([0, 2, 4], "even lanes"),
        ([1, 3, 5], "odd lanes"),
        ([0, 1, 2], "left half of the lanes"),
        ([3, 4, 5], "right half of the lanes"),
        ([0, 1, 5], "some lanes"),
    ],
)
def test_an_op_that_rotates_nothing_has_no_rotated_lanes(lanes: Any, expected: str) -> None:
    where = torch.zeros(8, 6, 6, dtype=torch.bool)
    where[..., lanes] = True
    assert words(where, None, packed(), by_row=True) == f"{expected}, all heads, all rows"


def test_an_element_that_is_right_by_chance_hides_nothing() -> None:
    place = told(ALL, [4, 5], ODD, packed(), spared=[(2, 4, 3)])
    assert place == "odd rotated lanes, heads of the partial tile, all rows"


def test_a_tile_that_divides_the_heads_has_no_partial_one() -> None:
    assert "after the first tile" not in told(ALL, [4, 5], ODD, packed(tile=None))
    assert "heads past the first tile" in told(ALL, [2, 3, 4, 5], ODD, packed(tile=2))
    assert "some heads" in told(ALL, [4, 5], ODD, packed(tile=2))


def test_a_partial_tile_of_rows_over_tokens_and_heads() -> None:
    case = Case("op", "sbhd", "float32", {"seq": 2, "batch": 4, "heads": 6}, tile={"tile": 32})
    where = torch.zeros(8, 6, 6, dtype=torch.bool)  # batch by batch: row 32 is head 2 of token 5
    where[5, 2:], where[6:] = True, True
    shaped = where.view(4, 2, 6, 6).transpose(0, 1)  # as sbhd has it
    place = words(shaped, LANES.expand(2, 4, 6, 6), case, by_row=True)
    assert place == "rotated and copied lanes, rows of the partial tile"


def test_the_numbers_are_those_of_this_case() -> None:
    where = torch.zeros(8, 6, 6, dtype=torch.bool)
    where[[0, 5, 6], 4:, 3::2] = True
    expected = "tokens 0, 5..6 of 8, heads 4..5 of 6, lanes 3, 5 of 6, tiles of BLOCK_H 4"
    assert numbers(where, packed(), by_row=True) == expected
    single = Case("op", "plain", "float32", {"dim": 1, "tokens": 1}, tile={"BLOCK": 64})
    assert numbers(torch.ones(1, 1, dtype=torch.bool), single, by_row=True) == ""


def test_a_result_without_rows_has_neither_tokens_nor_sequences() -> None:
    where = torch.zeros(6, 6, dtype=torch.bool)
    where[4:, 3::2] = True
    odd = "odd rotated lanes, heads of the partial tile"
    assert words(where, LANES.expand(6, 6), packed(), by_row=False) == odd
    assert numbers(where, packed(), by_row=False) == (
        "heads 4..5 of 6, lanes 3, 5 of 6, tiles of BLOCK_H 4"
    )
    assert words(where[5], None, packed(), by_row=False) == "some lanes"
    assert numbers(where[5], packed(), by_row=False) == "lanes 3, 5 of 6, tiles of BLOCK_H 4"
    assert words(torch.tensor(True), None, packed(), by_row=False) == "all lanes"


def test_a_number_for_each_row_is_in_rows_alone() -> None:
    case = Case("op", "sbhd", "float32", {"seq": 3, "batch": 2})
    where = torch.tensor([[True, False]] * 3)
    assert words(where, None, case, by_row=True) == "all lanes, the first batch entry"
    assert numbers(where, case, by_row=True) == "tokens 0..2 of 6"


def sums_rows(x: Tensor, r: Tensor, **modes: Any) -> Tensor:
    return blend.reference(x, r, **modes).sum(0)


def sums_rows_wrong(x: Tensor, r: Tensor) -> Tensor:
    return sums_rows(x, r) + torch.tensor([0, 1000, 0, 1000])


def test_an_output_with_as_many_heads_as_there_are_rows_is_told_by_its_heads() -> None:
    names = {"candidate": f"{__name__}:sums_rows_wrong", "reference": f"{__name__}:sums_rows"}
    spec = replace(SPEC, **names, dtypes=("float32",), sums=("y",))
    case = blend.small_case("float32")
    (finding,) = run_case(spec, replace(case, axes={**case.axes, "tokens": 3})).findings
    assert finding.locus == "odd lanes, all heads"
    assert finding.sentence.endswith(" It is in heads 0..2 of 3, lanes 1, 3 of 4.")


BIASED = OpSpec(
    name="biased",
    candidate=f"{__name__}:adds_biases",
    reference=f"{__name__}:biased",
    inputs=(Input("x", "rows heads dim"), Input("w", "heads dim"), Input("v", "dim")),
    outputs=(Output("y"), Output("total")),
    axes={"heads": (3,), "dim": (4,)},
    layouts=("plain", "sbhd", "thd"),
    dtypes=("float32",),
    values=("normal",),
    pad_rows="unspecified",
    sums=("w.grad", "v.grad", "total"),
)


def biased(
    x: Tensor,
    w: Tensor,
    v: Tensor,
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
    **packing: Any,
) -> tuple[Tensor, Tensor]:
    x, w, v = (tensor.to(compute_dtype) for tensor in (x, w, v))
    return x + w + v, w.sum()


def adds_biases(x: Tensor, w: Tensor, v: Tensor, **packing: Any) -> tuple[Tensor, Tensor]:
    return biased(x, w, v)


class _Off(torch.autograd.Function):
    """The identity, whose gradient is off in some places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: Any) -> Tensor:
        ctx.where = where
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        off = grads[0].clone()
        off[ctx.where] += 1000
        return off, None


def wrong_weights(x: Tensor, w: Tensor, v: Tensor, **packing: Any) -> tuple[Tensor, Tensor]:
    w, v = _Off.apply(w, (2, slice(1, None, 2))), _Off.apply(v, slice(2))
    return biased(x, w, v)


def wrong_row(x: Tensor, w: Tensor, v: Tensor, **packing: Any) -> tuple[Tensor, Tensor]:
    y, total = biased(_Off.apply(x, (0, ..., 2, slice(2))), w, v)
    return y, total + 1000


def told_of(candidate: str, layout: str) -> dict[str, tuple[str, str]]:
    """By result, the locus and the place that the sentence names."""
    spec = replace(BIASED, candidate=f"{__name__}:{candidate}")
    case = next(case for case in plan(spec, 0, 0) if case.layout == layout)
    shapes = {"plain": {"tokens": 3}, "sbhd": {"seq": 3, "batch": 2}, "thd": {}}[layout]
    case = replace(case, axes={"heads": 3, "dim": 4, **shapes})
    if layout == "thd":
        case = replace(case, lengths=(2, 3), gaps=(0, 0), tail=1)
    found = run_case(spec, case).findings
    return {f.tensor: (f.locus, f.sentence.partition(" It is in ")[2]) for f in found}


@pytest.mark.parametrize("layout", BIASED.layouts)
def test_a_planted_gradient_of_a_weight_is_told_without_rows(layout: str) -> None:
    assert told_of("wrong_weights", layout) == {
        "w.grad": ("odd lanes, the last head", "heads 2 of 3, lanes 1, 3 of 4."),
        "v.grad": ("left half of the lanes", "lanes 0..1 of 4."),
    }
    assert told_of("adds_biases", layout) == {}


@pytest.mark.parametrize(
    ("layout", "rows", "tokens"),
    [
        ("plain", "the first row", "0 of 3"),
        ("sbhd", "first rows of batch entries", "0, 3 of 6"),
        ("thd", "the first row", "0 of 6"),
    ],
)
def test_beside_it_a_gradient_with_rows_keeps_its_words(
    layout: str, rows: str, tokens: str
) -> None:
    assert told_of("wrong_row", layout) == {
        "x.grad": (
            f"left half of the lanes, the last head, {rows}",
            f"tokens {tokens}, heads 2 of 3, lanes 0..1 of 4.",
        ),
        "total": ("all lanes", ""),
    }


SPEC = replace(blend.SPEC, candidate=f"{__name__}:honest", values=("normal",))


def honest(x: Tensor, r: Tensor) -> Tensor:
    return blend.reference(x, r)


def rounds_twice(x: Tensor, r: Tensor) -> Tensor:
    return 0.8125 * x - 0.0625 * x - 0.375 * r  # every step in the storage dtype


def drops_a_term(x: Tensor, r: Tensor) -> Tensor:
    return blend.reference(x, 0.75 * r)


def rounds_to_bfloat16(x: Tensor, r: Tensor) -> Tensor:
    return blend.reference(x.bfloat16(), r.bfloat16()).to(x.dtype)


def divides_by_zero(x: Tensor, r: Tensor) -> Tensor:
    return blend.reference(x, r).abs() / 0


def next_number(x: Tensor, r: Tensor) -> Tensor:
    y = blend.reference(x, r)
    return y + (y.detach().nextafter(torch.tensor(torch.inf)) - y.detach())


def doubles_16_bits(x: Tensor, r: Tensor) -> Tensor:
    return blend.reference(x, r) * (1 if x.dtype == torch.float32 else 2)


def findings(name: str, dtype: str, values: str = "normal", check: str = "values") -> list[Finding]:
    spec = replace(SPEC, candidate=f"{__name__}:{name}", values=(values,))
    spec = replace(spec, bit_equal=check == "reference_bits")
    cases = [case for case in plan(spec, 0, 0) if case.dtype == dtype]
    found = [finding for case in cases for finding in run_case(spec, case).findings]
    return [finding for finding in found if (finding.check, finding.tensor) == (check, "y")]


@pytest.mark.parametrize(
    ("name", "check", "told"),
    [
        ("divides_by_zero", "values", "elements differ): inf where a finite number is right."),
        ("next_number", "reference_bits", " ulp off, where the bits must be the same."),
        ("drops_a_term", "values", " ulp off, bound "),
    ],
)
def test_how_far_a_value_is_off_is_said_in_words(name: str, check: str, told: str) -> None:
    found = findings(name, "float32", check=check)
    assert found
    for finding in found:
        assert told in finding.sentence
        assert finding.locus.startswith("all lanes")


@pytest.mark.parametrize(
    ("name", "dtype", "ending"),
    [
        ("rounds_twice", "bfloat16", "times: rounding."),
        ("rounds_twice", "float16", "times: rounding."),
        ("drops_a_term", "bfloat16", "times: the algorithm, or a step of fixed precision."),
        ("rounds_to_bfloat16", "float16", "times: the algorithm, or a step of fixed precision."),
    ],
)
def test_a_run_in_float32_tells_rounding_from_the_rest(name: str, dtype: str, ending: str) -> None:
    sentences = [finding.sentence for finding in findings(name, dtype)]
    assert sentences
    assert {sentence.rpartition(" times: ")[2] for sentence in sentences} == {
        ending.removeprefix("times: ")
    }


def test_a_case_in_float32_has_nothing_to_be_compared_with() -> None:
    assert findings("drops_a_term", "float32")
    assert not any("In float32" in f.sentence for f in findings("drops_a_term", "float32"))


def test_no_gap_at_all_says_nothing() -> None:
    """Constants are exact in float32, as is the zero that stands where both sides overflow."""
    found = findings("doubles_16_bits", "bfloat16", "constant")
    assert found
    assert not any("In float32" in finding.sentence for finding in found)


def test_an_honest_op_has_nothing_to_explain() -> None:
    assert findings("honest", "bfloat16") == []
