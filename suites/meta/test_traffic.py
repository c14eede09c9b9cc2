"""Traffic is counted, fitted and compared: each planted change is a regression, its twin is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from parity.interpreter import prepare

TIER = prepare()

import triton  # noqa: E402  the tier is chosen before triton is imported
import triton.language as tl  # noqa: E402

from parity.catalog import resolve  # noqa: E402
from parity.gate.comparison import Comparison  # noqa: E402
from parity.generate import is_legal, plan, sized  # noqa: E402
from parity.record import Record  # noqa: E402
from parity.runner import run_case  # noqa: E402
from parity.spec import Input, OpSpec, Output  # noqa: E402
from parity.traffic import exponent, is_traffic, traffic_judgements  # noqa: E402
from parity.verdict import Exit, Judgement, Verdict, exit_code  # noqa: E402

pytestmark = pytest.mark.skipif(
    TIER == "gpu", reason="NOT_RUN: triton compiles for the GPU here, the interpreter is not used"
)
Tensor = torch.Tensor
SPEC = OpSpec(
    name="scaled",
    candidate=f"{__name__}:binary_search",
    reference=f"{__name__}:reference",
    inputs=(
        Input("x", "rows heads dim"),
        Input("cos", "positions dim", kind="cos"),
        Input("cu_seqlens", kind="cu_seqlens"),
    ),
    outputs=(Output("y"),),
    axes={"heads": range(1, 65), "dim": (8,)},
    layouts=("thd",),
    dtypes=("float32",),
    table_dtypes=("float32",),
    values=("normal",),
    halves=("different",),
    gradients=("contiguous",),
)


def reference(
    x: Tensor,
    cos: Tensor,
    cu_seqlens: Tensor,
    *,
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
) -> Tensor:
    """Every row times the row of the table at its place in its sequence."""
    rows = torch.arange(len(x))
    ends = cu_seqlens[1:].long()
    sequence = torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)
    place = (rows - cu_seqlens.long()[sequence]) * (rows < ends[-1])
    return (x.to(compute_dtype) * cos.to(compute_dtype)[place][:, None]).to(x.dtype)


@triton.jit
def scaled_kernel(
    X, COS, ENDS, Y, rows, count, heads,
    D: tl.constexpr, LINEAR: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr,
    TWICE: tl.constexpr,
):  # fmt: skip
    """One token and `TILE` heads a program; its sequence by a linear or a binary search."""
    row, lane = tl.program_id(0), tl.arange(0, D)
    first = 0
    if LINEAR:
        for sequence in range(count):
            end = tl.load(ENDS + sequence + 1)
            first = tl.where(end <= row, sequence + 1, first)
    else:
        last = count
        for _ in range(STEPS):
            middle = (first + last) // 2
            past = (tl.load(ENDS + middle + 1, mask=middle < count, other=2**30) <= row) & (
                first < last
            )
            first = tl.where(past, middle + 1, first)
            last = tl.where(past, last, middle)
    place = tl.where(first < count, row - tl.load(ENDS + tl.minimum(first, count - 1)), 0)
    table = tl.load(COS + place * D + lane)
    for step in range(TILE):
        head = tl.program_id(1) * TILE + step
        at = (row * heads + head) * D + lane
        x = tl.load(X + at, mask=(lane < D) & (head < heads))
        if TWICE:
            x = tl.load(X + at, mask=(lane < D) & (head < heads))
        tl.store(Y + at, x * table, mask=(lane < D) & (head < heads))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, ends: Tensor, options: Any) -> Tensor:
        ctx.save_for_backward(cos, ends)
        ctx.options = options
        return _launch(x, cos, ends, **options)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        cos, ends = ctx.saved_tensors
        return _launch(gradients[0].contiguous(), cos, ends, **ctx.options), None, None, None


def _launch(x: Tensor, cos: Tensor, ends: Tensor, linear: bool, tile: int, twice: bool) -> Tensor:
    y, heads, count = torch.empty_like(x), x.shape[1], len(ends) - 1
    grid = (len(x), triton.cdiv(heads, tile or heads))
    scaled_kernel[grid](
        x, cos, ends, y, len(x), count, heads,
        x.shape[-1], linear, tile or heads, count.bit_length() + 1, twice,
    )  # fmt: skip
    return y


def _op(linear: bool = False, tile: int = 0, twice: bool = False) -> Callable[..., Tensor]:
    options = {"linear": linear, "tile": tile, "twice": twice}
    return lambda x, cos, cu_seqlens: _Scaled.apply(x, cos, cu_seqlens, options)


binary_search, linear_scan = _op(), _op(linear=True)
a_program_per_head_block, reads_twice = _op(tile=4), _op(twice=True)


@cache
def records(candidate: str) -> dict[str, Record]:
    spec = replace(SPEC, candidate=f"{__name__}:{candidate}")
    cases = {case.id: case for one in sized(SPEC) for case in one.cases}
    found = {case.id: run_case(spec, case) for case in cases.values()}
    assert {record.status for record in found.values()} == {"passed"}
    return found


def judged(base: str, head: str) -> list[Judgement]:
    found = traffic_judgements("scaled", sized(SPEC), records(base), records(head))
    assert all(is_traffic(item) for item in found)
    return found


def signatures(base: str, head: str, verdict: Verdict) -> set[str]:
    return {item.signature for item in judged(base, head) if item.verdict == verdict}


PLANTED = {
    "linear_scan": "traffic | cu_seqlens in {phase} | loads grow with sequences",
    "a_program_per_head_block": "traffic | cos in {phase} | bytes loaded grow with heads",
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_law_that_gets_steeper_is_a_regression_and_back_again_a_fix(planted: str) -> None:
    wanted = {PLANTED[planted].format(phase=phase) for phase in ("forward", "backward")}
    assert wanted <= signatures("binary_search", planted, Verdict.REGRESSION)
    there = signatures("binary_search", planted, Verdict.REGRESSION)
    assert signatures(planted, "binary_search", Verdict.FIXED) == there
    assert not signatures(planted, "binary_search", Verdict.REGRESSION)


def test_a_tensor_read_twice_is_a_regression() -> None:
    (found,) = judged("binary_search", "reads_twice")
    assert found.signature == "traffic | all tensors | bytes moved"
    assert found.verdict == Verdict.REGRESSION


def test_equal_traffic_is_no_finding_and_a_linear_search_in_both_a_hazard() -> None:
    assert judged("binary_search", "binary_search") == []
    found = judged("linear_scan", "linear_scan")
    assert {item.verdict for item in found} == {Verdict.HAZARD}
    assert "loads of cu_seqlens in forward grow as sequences^0.9" in found[-1].sentence.lower()
    assert exit_code([Verdict.IDENTICAL, *(item.verdict for item in found)]) == Exit.OK


def test_the_gate_asks_for_traffic(tmp_path: Any) -> None:
    jobs = [(SPEC, case) for case in plan(SPEC, 0, 0)]
    comparison = Comparison(tmp_path, [], jobs)  # type: ignore[arg-type]  # its run is not used
    comparison.records |= {"base": records("binary_search"), "head": records("linear_scan")}
    found = [item for item in comparison.judgements() if is_traffic(item)]
    assert Verdict.REGRESSION in {item.verdict for item in found}


def test_what_was_not_counted_has_no_judgement() -> None:
    uncounted = {key: replace(one, traffic={}) for key, one in records("linear_scan").items()}
    assert traffic_judgements("scaled", sized(SPEC), records("binary_search"), uncounted) == []


@pytest.mark.parametrize(
    ("counts", "expected"), [((5, 5, 5), 0), ((4, 16, 64), 1), ((3, 5, 7), 0.31), ((1, 16, 256), 2)]
)
def test_the_exponent_of_a_count(counts: tuple[int, ...], expected: float) -> None:
    assert exponent((4, 16, 64), counts) == pytest.approx(expected, abs=0.01)


def test_the_series_are_legal_in_every_registered_op() -> None:
    for name in ("parity", "megatron"):
        for spec in resolve(name).values():
            cases = [case for one in sized(spec) for case in one.cases]
            assert [is_legal(spec, case) for case in cases] == [""] * len(cases)
            assert {one.axis for one in sized(spec)} == {"tokens", "heads", "sequences"}
