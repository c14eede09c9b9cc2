"""The bounds are the formulas that their page derives, down to the last term."""

from __future__ import annotations

import pytest
import torch

from parity.bounds import limit, must_keep_bits, smallest_subnormal, ulp, unit_roundoff
from parity.comparators import within
from parity.spec import Input, OpSpec, Output

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
ORACLE = torch.tensor([0.75, -3.0, 0.0], dtype=torch.float64)
M = torch.tensor([2.0, 3.0, 0.0], dtype=torch.float64)


def spec(arithmetic: str = "fp32_once", rounded_sums: tuple[str, ...] = ()) -> OpSpec:
    return OpSpec(
        "op",
        "a:f",
        "a:f",
        (Input("x", "rows"),),
        (Output("y"),),
        {},
        arithmetic=arithmetic,
        rounded_sums=rounded_sums,
    )


def bound(contract: OpSpec, dtype: torch.dtype, table: torch.dtype, terms: float) -> torch.Tensor:
    count = torch.full_like(M, terms)
    step = ulp(ORACLE, dtype)
    return limit(contract, "x.grad", dtype, table, step=step, magnitude=M, terms=count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_of_a_dtype(dtype: torch.dtype) -> None:
    facts = torch.finfo(dtype)
    assert unit_roundoff(dtype) == facts.eps / 2
    assert smallest_subnormal(dtype) == facts.smallest_normal * facts.eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_ulp_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    facts = torch.finfo(dtype)
    edges = [0.0, smallest_subnormal(dtype), facts.smallest_normal / 2, facts.smallest_normal]
    below = facts.smallest_normal * (2 - facts.eps)  # the largest of its power of two
    edges += [below, 2 * facts.smallest_normal, 0.5, 1.0, 1.5, 2 - facts.eps, 2.0, facts.max / 2]
    values = torch.tensor(edges, dtype=torch.float64).to(dtype)
    following = (values.view(BITS[dtype]) + 1).view(dtype)
    distance = following.double() - values.double()
    assert ulp(values.double(), dtype).tolist() == distance.tolist()
    assert ulp(-values.double(), dtype).tolist() == distance.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("terms", [1, 2, 5])
def test_one_rounding_after_fp32(dtype: torch.dtype, terms: int) -> None:
    expected = 0.5 * ulp(ORACLE, dtype) + terms * 2.0**-24 * M + terms * 2.0**-150
    assert torch.equal(bound(spec(), dtype, torch.float32, terms), expected)


@pytest.mark.parametrize("terms", [1, 2])
def test_every_operation_in_the_storage_dtype(terms: int) -> None:
    found = bound(spec("promoted"), torch.bfloat16, torch.bfloat16, terms)
    assert torch.equal(found, terms * 2.0**-8 * M + terms / 2 * 2.0**-133)


def test_what_is_promoted_to_fp32_is_rounded_once() -> None:
    for dtype, table in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        found = bound(spec("promoted"), dtype, table, 2)
        assert torch.equal(found, bound(spec(), dtype, table, 2))


def test_sums_that_are_rounded_before_they_are_rotated() -> None:
    """h = 3 operands: their sum, its rounding to bf16, and a rotation of two products."""
    contract = spec("promoted", rounded_sums=("x.grad",))
    u = 2.0**-8
    rotation = 2 * u * M + 2 * 2.0**-134
    operands = (3 * 2.0**-24 + u) * (1 + 2 * u) * M + 2.0**-133
    found = bound(contract, torch.bfloat16, torch.bfloat16, 6)
    assert torch.allclose(found, rotation + operands, rtol=1e-14, atol=0)
    another = limit(
        contract,
        "y",
        torch.bfloat16,
        torch.bfloat16,
        step=ulp(ORACLE, torch.bfloat16),
        magnitude=M,
        terms=torch.full_like(M, 6.0),
    )
    assert torch.equal(another, bound(spec("promoted"), torch.bfloat16, torch.bfloat16, 6))


def test_a_copy_is_one_term_that_the_dtype_can_hold() -> None:
    oracle = torch.tensor([0.5, 0.1, 0.5, 0.0], dtype=torch.float64)
    terms = torch.tensor([1.0, 1.0, 2.0, 0.0])
    found = must_keep_bits(torch.bfloat16, oracle=oracle, terms=terms)
    assert found.tolist() == [True, False, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_where_zero_is_right_no_other_number_is(dtype: torch.dtype) -> None:
    """All terms are zero, so that nothing is rounded: half a subnormal is left for underflow."""
    zero = torch.zeros(1, dtype=torch.float64)
    step = ulp(zero, dtype)
    allowed = limit(spec(), "y", dtype, torch.float32, step=step, magnitude=zero, terms=zero + 2)
    wrong = torch.full((1,), 2 * smallest_subnormal(dtype), dtype=dtype)
    assert within(actual=wrong, expected=zero, limit=allowed) is not None
    assert within(actual=torch.zeros(1, dtype=dtype), expected=zero, limit=allowed) is None
