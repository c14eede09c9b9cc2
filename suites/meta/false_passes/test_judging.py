"""Routes by which a wrong result passes its judge: one result, one oracle, one limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.catalog import resolve
from parity.comparators import non_finite, same_bits, within
from parity.generate import plan
from parity.record import Record
from parity.runner import run_case
from suites.meta.blend import SPEC, forward, planted, reference, small_case

Tensor = torch.Tensor


def run(candidate: str, dtype: str = "float32", **contract: Any) -> Record:
    spec = replace(SPEC, candidate=f"{__name__}:{candidate}", **contract)
    return run_case(spec, small_case(dtype))


def found(record: Record) -> set[tuple[str, str]]:
    return {(finding.check, finding.tensor) for finding in record.findings}


def honest(x: Tensor, r: Tensor) -> Tensor:
    return planted()(x, r)


# --- what is compared


def returns_nothing(x: Tensor, r: Tensor) -> tuple[()]:
    return ()


def test_no_output_is_no_match() -> None:
    assert found(run("returns_nothing")) == {("runs", "forward")}
    with pytest.raises(ValueError, match="at least one output"):
        replace(SPEC, outputs=())


wider = planted(lambda x, r: forward(x, r).double())


def test_an_output_without_elements_is_compared_by_its_structure() -> None:
    empty = replace(small_case("float32"), axes={"heads": 3, "dim": 0, "tokens": 2})
    axes = {"heads": (3,), "dim": (0,)}
    for name, expected in (("honest", set()), ("wider", {("structure", "y")})):
        spec = replace(SPEC, candidate=f"{__name__}:{name}", axes=axes)
        assert found(run_case(spec, empty)) == expected


one_head_for_all = planted(lambda x, r: forward(x, r)[:, :1].contiguous())
heads_and_rows_exchanged = planted(lambda x, r: forward(x, r).transpose(0, 1).contiguous())


def test_a_result_that_would_broadcast_is_refused() -> None:
    assert ("structure", "y") in found(run("one_head_for_all"))
    assert ("structure", "y") in found(run("heads_and_rows_exchanged"))


def test_a_comparator_never_broadcasts() -> None:
    row, matrix = torch.ones(1, 4), torch.ones(4, 4)
    limit = torch.zeros(4, 4)
    comparisons: list[Callable[[Tensor], object]] = [
        lambda actual: within(actual=actual, expected=matrix.double(), limit=limit),
        lambda actual: same_bits(actual=actual, expected=matrix),
        lambda actual: non_finite(actual=actual, expected=matrix),
    ]
    for compare in comparisons:
        assert compare(matrix.clone()) is None
        with pytest.raises(ValueError, match="one shape"):
            compare(row)


def test_a_tensor_is_never_compared_with_itself() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="memory of their own"):
        _ = same_bits(actual=x, expected=x)
    assert same_bits(actual=x, expected=x.clone()) is None


# --- how it fails


def not_written_yet(x: Tensor, r: Tensor) -> Tensor:
    raise NotImplementedError("heads above 2")


def backward_not_written_yet(x: Tensor, r: Tensor) -> Tensor:
    return planted(backward=not_written_yet_either)(x, r)


def not_written_yet_either(grad: Tensor) -> Any:
    raise ImportError("no such backend")


@pytest.mark.parametrize(
    ("candidate", "phase", "error"),
    [
        ("not_written_yet", "forward", "NotImplementedError: heads above N"),
        ("backward_not_written_yet", "backward", "ImportError: no such backend"),
    ],
)
def test_an_exception_is_its_own_failure(candidate: str, phase: str, error: str) -> None:
    """Neither a skip nor a mismatch: it has its own check, with the exception in its signature."""
    record = run(candidate)
    assert record.status == "failed"
    assert [(f.check, f.tensor, f.error) for f in record.findings] == [("runs", phase, error)]


# --- how large an error may be


def _steps(count: int) -> Callable[..., Tensor]:
    """Every element this many numbers of its dtype beside the honest one."""

    def nudged(x: Tensor, r: Tensor) -> Tensor:
        y = forward(x, r)
        for _ in range(count):
            y = torch.nextafter(y, torch.full_like(y, torch.inf))
        return y

    return planted(nudged)


one_step, two_steps = _steps(1), _steps(2)


def test_the_limit_is_held() -> None:
    """Lanes of one nonzero term 1.3125 or 0.65625 may be off by 1.3125 + 0.5 of their ulps."""
    spec, case = replace(SPEC, candidate=f"{__name__}:one_step"), small_case("float32")
    case = replace(case, variants={**case.variants, "values": "one_hot"})
    assert run_case(spec, case).findings == ()
    beyond = run_case(replace(spec, candidate=f"{__name__}:two_steps"), case)
    assert found(beyond) == {("values", "y")}


def _one_lane(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The last lane of the honest result changed."""

    def changed(x: Tensor, r: Tensor) -> Tensor:
        y = forward(x, r)
        y[-1, -1, -1] = change(y[-1, -1, -1])
        return y

    return planted(changed)


relatively_close = _one_lane(lambda value: value * (1 + 1e-5))
absolutely_close = _one_lane(lambda value: value + 1e-6)


@pytest.mark.parametrize(
    ("candidate", "scale", "accepts"),
    [
        ("relatively_close", 1e6, {"rtol": 1e-4, "atol": 0.0}),
        ("absolutely_close", 1e-3, {"rtol": 0.0, "atol": 1e-4}),
    ],
)
def test_neither_a_small_relative_nor_a_small_absolute_error_excuses(
    candidate: str, scale: float, accepts: dict[str, float]
) -> None:
    """One lane only, which a share of elements that may be wrong would excuse as well."""
    x, r = scale * torch.ones(16, 4, 4), torch.zeros(16, 4, 4)
    expected = reference(x, r)
    limit = 2 * 2.0**-24 * expected.abs().double() + 2.0**-24 * expected.abs().double()
    actual = globals()[candidate](x, r)
    assert torch.allclose(actual, expected, **accepts)
    mismatch = within(actual=actual, expected=expected.double(), limit=limit)
    assert mismatch is not None
    assert int(mismatch.where.sum()) == 1
    assert within(actual=honest(x, r), expected=expected.double(), limit=limit) is None
    assert ("values", "y") in found(run(candidate))


def test_one_number_for_all_elements_hides_what_the_bound_sees() -> None:
    """One element of a million, off by its own size: the cosine is 1 to seven digits."""
    expected = torch.linspace(0.5, 1.5, 2**20, dtype=torch.float64)
    actual = expected.float()
    limit = 2.0**-24 * expected
    assert within(actual=actual, expected=expected, limit=limit) is None
    actual[12345] = 0.0
    cosine = torch.nn.functional.cosine_similarity(actual.double(), expected, dim=0)
    assert 1 - float(cosine) < 1e-6
    mismatch = within(actual=actual, expected=expected, limit=limit)
    assert mismatch is not None
    assert mismatch.worst == (12345,)


zeros = planted(lambda x, r: torch.zeros_like(x))
zero_gradients = planted(backward=lambda grad: (torch.zeros_like(grad), torch.zeros_like(grad)))


def test_zeros_pass_nowhere() -> None:
    """Every planned case of every regime, down to subnormal numbers, whatever their scale."""
    for case in plan(SPEC, 0, 0):
        for candidate, tensor in (("zeros", "y"), ("zero_gradients", "x.grad")):
            record = run_case(replace(SPEC, candidate=f"{__name__}:{candidate}"), case)
            assert ("values", tensor) in found(record), case


ROPE = replace(
    resolve("parity")["fused_mla_rope_out_of_place"],
    candidate=f"{__name__}:eager",
    dtypes=("bfloat16",),
    table_dtypes=("storage",),
    halves=("diagonal",),
    values=("paired",),
)


def eager(*, tile: int | None = None, **arguments: Any) -> Tensor:
    """Plain PyTorch in the storage dtype: every product is rounded before the difference."""
    from parity.reference.out_of_place import fused_mla_rope_out_of_place

    return fused_mla_rope_out_of_place(**arguments, compute_dtype=torch.bfloat16)


def test_an_eager_result_that_cancels_sets_no_standard() -> None:
    """Its error is hundreds of ulps, so that "twice eager's error" would pass almost anything."""
    case = plan(ROPE, 0, 0)[0]
    record = run_case(ROPE, case)
    assert ("values", "t.grad") in found(record)
    assert record.headroom["t.grad"] > 100
    kernel = replace(ROPE, candidate=resolve("parity")[ROPE.name].candidate)
    assert run_case(kernel, case).findings == ()


# --- NaN and infinity


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_agrees_with_itself_only(value: float) -> None:
    expected = torch.tensor([1.0, value, 3.0])
    for wrong in (0.0, float("nan"), float("inf"), float("-inf")):
        actual = torch.tensor([1.0, wrong, 3.0])
        same = str(wrong) == str(value)
        assert (non_finite(actual=actual, expected=expected) is None) == same
        assert (non_finite(actual=expected, expected=actual) is None) == same
    limit = torch.ones(3, dtype=torch.float64)
    finite = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert within(actual=finite.clone(), expected=finite, limit=limit) is None
    assert within(actual=expected.clone(), expected=finite, limit=limit) is not None


nan_everywhere = planted(lambda x, r: torch.full_like(x, torch.nan))
drops_nan = planted(lambda x, r: forward(x, r).nan_to_num())


def test_nan_is_no_wildcard_and_no_zero() -> None:
    record = run("nan_everywhere")
    assert found(record) == {("values", "y")}
    assert record.headroom["y"] == float("inf")
    assert run("honest").headroom["y"] <= 1
    spec, case = replace(SPEC, candidate=f"{__name__}:drops_nan"), small_case("float32")
    case = replace(case, variants={**case.variants, "values": "nan_lane"})
    assert found(run_case(spec, case)) == {("values", "y")}
    assert run_case(replace(SPEC, candidate=f"{__name__}:honest"), case).findings == ()
