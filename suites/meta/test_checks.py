"""Every check catches a planted bug and passes its honest twin."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.case import Case
from parity.generate import plan
from parity.record import Record
from parity.runner import device, run_case
from parity.spec import Input, Output, Unsupported
from suites.meta import blend
from suites.meta.blend import SPEC, backward, forward, planted, small_case, write_past

Tensor = torch.Tensor
honest = blend.honest


def _raise(*_: Tensor) -> Any:
    raise IndexError("row 17 of 12")


def _wrong_lane(x: Tensor, r: Tensor) -> Tensor:
    y = forward(x, r)
    y[-1, -1, -1] *= 1.0625
    return y


def _one_nan(x: Tensor, r: Tensor) -> Tensor:
    y = forward(x, r)
    y[0, 1, 2] = float("nan")
    return y


def _other_nan(x: Tensor, r: Tensor) -> Tensor:
    y = forward(x, r)
    y.view(torch.int32)[y.isnan()] = 0x7FC12345
    return y


def _forgets_a_head(x: Tensor, r: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y[:, :-1] = forward(x, r)[:, :-1]
    return y


def _writes_its_input(x: Tensor, r: Tensor) -> Tensor:
    y = forward(x, r)
    x.detach()[0, 0, 0] += 1.0
    return y


def _writes_its_gradient(grad: Tensor) -> tuple[Tensor, Tensor]:
    found = backward(grad)
    grad[0, 0, 0] += 1.0
    return found


def _writes_past_its_output(x: Tensor, r: Tensor) -> Tensor:
    y = forward(x, r)
    write_past(y)
    return y


def at_absolute_offsets(x: Tensor, r: Tensor) -> Tensor:
    """Right, with offsets that count from where new memory begins, in backward those of torch."""
    y = (0.75 * x.float() - 0.375 * r.float()).to(x.dtype)
    return y.as_strided(y.shape, y.stride(), 0).clone()


def _writes_before_its_input(x: Tensor, r: Tensor) -> Tensor:
    x.detach().as_strided((1,), (1,), x.storage_offset() - 1)[0] = 1.0
    return forward(x, r)


def _transposed(x: Tensor, r: Tensor) -> Tensor:
    return forward(x, r).transpose(0, 1).contiguous().transpose(0, 1)


def _wrong_sign(grad: Tensor) -> tuple[Tensor, Tensor]:
    left, right = backward(grad)
    return left, -right


raises_forward = planted(_raise)
raises_backward = planted(backward=_raise)
one_dimension_less = planted(lambda x, r: forward(x, r)[..., :-1].contiguous())
wider = planted(lambda x, r: forward(x, r).double())
strided = planted(_transposed)
no_gradient = planted(backward=lambda grad: (None, backward(grad)[1]))
wrong_lane = planted(_wrong_lane)
one_nan = planted(_one_nan)
other_nan = planted(_other_nan)
half_precise = planted(lambda x, r: (0.75 * x - (0.375 * r).bfloat16()).to(x.dtype))
forgets_a_head = planted(_forgets_a_head)
writes_its_input = planted(_writes_its_input)
writes_its_gradient = planted(backward=_writes_its_gradient)
writes_past_its_output = planted(_writes_past_its_output)
writes_before_its_input = planted(_writes_before_its_input)
wrong_gradient_sign = planted(backward=_wrong_sign)


class _KeepsItsOutput(torch.autograd.Function):
    """Right, but its backward uses the output as scratch memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor) -> Tensor:
        ctx.output = forward(x, r)
        return ctx.output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.output.detach().fill_(7.0)
        return backward(grads[0])


def backward_writes_its_output(x: Tensor, r: Tensor) -> Tensor:
    return _KeepsItsOutput.apply(x, r)


def returns_its_input(x: Tensor, r: Tensor) -> Tensor:
    """The right values, but in the memory of x, which the contract does not offer."""
    with torch.no_grad():
        x.copy_(0.75 * x.float() - 0.375 * r.float())
    return x


PLANTED = {
    "raises_forward": ("runs", "forward"),
    "raises_backward": ("runs", "backward"),
    "one_dimension_less": ("structure", "y"),
    "wider": ("structure", "y"),
    "strided": ("structure", "y"),
    "no_gradient": ("structure", "x.grad"),
    "wrong_lane": ("values", "y"),
    "one_nan": ("values", "y"),
    "half_precise": ("values", "y"),
    "forgets_a_head": ("written", "y"),
    "writes_its_input": ("inputs_unchanged", "x"),
    "writes_its_gradient": ("gradients_unchanged", "incoming gradient of y"),
    "backward_writes_its_output": ("outputs_unchanged", "y"),
    "writes_past_its_output": ("guards", "forward"),
    "writes_before_its_input": ("guards", "forward"),
    "wrong_gradient_sign": ("values", "r.grad"),
    "returns_its_input": ("aliasing", "y"),
}


def _run(name: str, case: Case, **contract: Any) -> Record:
    return run_case(replace(SPEC, candidate=f"{__name__}:{name}", **contract), case)


@pytest.mark.parametrize("name", ["honest", "at_absolute_offsets"])
def test_the_honest_op_passes_every_planned_case(name: str) -> None:
    for case in plan(SPEC, 20, 0):
        assert _run(name, case).findings == ()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_by_its_check(name: str) -> None:
    record = _run(name, small_case("float32"))
    assert PLANTED[name] in [(finding.check, finding.tensor) for finding in record.findings]


def _one_wide(step: str) -> Any:
    """The op on memory of one more lane in front, which is cut off: one lane has any stride."""

    def changed(x: Tensor, r: Tensor) -> Tensor:
        y = forward(x, r)
        wider = y.new_empty(*y.shape[:-1], 2)[..., :1].copy_(y)
        return wider if step == "sliced" else y.as_strided(y.shape, (*y.stride()[:-1], 5))

    return planted(changed)


one_lane_of_any_stride = _one_wide("odd")
sliced = _one_wide("sliced")


def test_the_stride_of_an_axis_of_one_element_is_no_difference() -> None:
    case = replace(small_case("float32"), axes={"heads": 3, "dim": 1, "tokens": 2})
    axes = {"axes": {"heads": (3,), "dim": (1,)}}
    assert _run("one_lane_of_any_stride", case, **axes).findings == ()
    found = [(f.check, f.error) for f in _run("sliced", case, **axes).findings]
    assert found == [("structure", "strides")]


HALVES = {"outputs": (Output("left"), Output("right")), "axes": {"heads": (3,), "dim": (4,)}}
HALVES |= {"reference": f"{__name__}:halves"}


def halves(x: Tensor, r: Tensor, **modes: Any) -> tuple[Tensor, Tensor]:
    """Two views of one fresh result."""
    left, right = blend.reference(x, r, **modes).split(2, dim=-1)
    return left, right


class _Halves(torch.autograd.Function):
    """The blend as two outputs, which ``laid`` cuts out of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, laid: Any) -> Any:
        return tuple(laid(half) for half in forward(x, r).split(2, dim=-1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *backward(torch.cat(grads, dim=-1)), None


def halves_as_views(x: Tensor, r: Tensor) -> Any:
    return _Halves.apply(x, r, lambda half: half.detach())


def halves_apart(x: Tensor, r: Tensor) -> Any:
    return _Halves.apply(x, r, torch.clone)


def halves_transposed(x: Tensor, r: Tensor) -> Any:
    return _Halves.apply(x, r, lambda half: half.transpose(0, 1).contiguous().transpose(0, 1))


def test_a_reference_that_returns_views_keeps_its_strides() -> None:
    kinds = dict.fromkeys(("x", "r", "left.grad", "right.grad"), "contiguous")
    case = replace(small_case("float32"), variants=kinds | {"values": "normal"})
    for name in ("halves_as_views", "halves_apart"):
        assert _run(name, case, **HALVES).findings == ()
    found = _run("halves_transposed", case, **HALVES).findings
    assert {(f.check, f.error) for f in found} == {("structure", "strides")}


def test_a_bitwise_contract_sees_one_ulp() -> None:
    """Within the bound, so only the contract that promises the reference's bits is broken."""
    record = _run("one_ulp", small_case("float32"), bit_equal=True)
    assert {finding.check for finding in record.findings} == {"reference_bits"}
    assert _run("one_ulp", small_case("float32")).findings == ()
    assert _run("honest", small_case("float32"), bit_equal=True).findings == ()


def one_ulp(x: Tensor, r: Tensor) -> Tensor:
    """One ulp beside the reference in every element."""
    return planted(lambda x, r: torch.nextafter(forward(x, r), torch.full_like(x, 1e9)))(x, r)


def test_a_wrong_sign_in_low_precision_is_found() -> None:
    for dtype in ("bfloat16", "float16"):
        record = _run("wrong_gradient_sign", small_case(dtype))
        assert ("values", "r.grad") in [(f.check, f.tensor) for f in record.findings]


def test_an_expanded_gradient_is_handed_over_as_it_is() -> None:
    record = _run("needs_dense_gradient", small_case("float32", **{"y.grad": "expanded"}))
    assert [(f.check, f.tensor) for f in record.findings] == [("runs", "backward")] or (
        record.findings[0].check == "runs"
    )


def _dense_only(grad: Tensor) -> tuple[Tensor, Tensor]:
    if not grad.is_contiguous():
        raise AssertionError
    return backward(grad)


needs_dense_gradient = planted(backward=_dense_only)


def test_a_missing_capability_is_not_a_failure_and_not_a_pass() -> None:
    record = _run("lacks_it", small_case("float32"))
    assert (record.status, record.checks, record.findings) == ("unsupported", (), ())
    assert "no such thing" in record.reason


def lacks_it(x: Tensor, r: Tensor) -> Tensor:
    raise Unsupported("There is no such thing in this revision.")


def test_a_function_that_is_not_there_is_a_missing_capability() -> None:
    assert _run("never_written", small_case("float32")).status == "unsupported"


def test_what_the_contract_forbids_is_refused() -> None:
    with pytest.raises(ValueError, match="heads"):
        _run("honest", replace(small_case("float32"), axes={"heads": 4, "dim": 4, "tokens": 2}))
    with pytest.raises(ValueError, match="layout"):
        _run("honest", replace(small_case("float32"), layout="thd"))


def test_a_constant_coefficient_needs_the_number_of_terms() -> None:
    with pytest.raises(ValueError, match=r"set OpSpec\.terms"):
        _run("honest", small_case("float32"), terms=None)


asks_for_no_memory = planted(lambda x, r: forward(x, r) * torch.empty(3, device="meta").dim())


def test_a_tensor_without_memory_is_no_allocation() -> None:
    assert _run("asks_for_no_memory", small_case("float32")).findings == ()


def test_the_same_case_gives_the_same_record() -> None:
    for name in ("honest", "wrong_lane"):
        assert _run(name, small_case("bfloat16")) == _run(name, small_case("bfloat16"))
    assert device().type in ("cpu", "cuda")


def test_an_illegal_call_must_be_refused_with_a_value_error() -> None:
    """Only ValueError is a refusal: a result, an assert and an IndexError are findings."""
    contract = {"refuses": ("data_of_two_dtypes",)}
    found = {
        name: [(f.check, f.error) for f in _run(name, small_case("float32"), **contract).findings]
        for name in ("honest", "refuses_mixed_dtypes", "asserts_one_dtype")
    }
    assert found["honest"] == [("refuses:data_of_two_dtypes", "it returned a result")]
    assert found["asserts_one_dtype"][0][1].startswith("it raised AssertionError")
    assert found["refuses_mixed_dtypes"] == []


def refuses_mixed_dtypes(x: Tensor, r: Tensor) -> Tensor:
    if x.dtype != r.dtype:
        raise ValueError("Expected one dtype.")
    return honest(x, r)


def asserts_one_dtype(x: Tensor, r: Tensor) -> Tensor:
    assert x.dtype == r.dtype
    return honest(x, r)


def test_a_contract_may_let_backward_write_its_incoming_gradient() -> None:
    """Only the output it names, and only inside: everything else about the gradient still holds."""
    outputs = (Output("y", gradient_mutable=True),)
    assert _run("writes_its_gradient", small_case("float32"), outputs=outputs).findings == ()
    record = _run("writes_past_its_gradient", small_case("float32"), outputs=outputs)
    assert [(f.check, f.tensor) for f in record.findings] == [("guards", "backward")]


def _writes_past_its_gradient(grad: Tensor) -> tuple[Tensor, Tensor]:
    grad.as_strided((1,), (1,), grad.storage_offset() + grad.numel())[0] = 1.0
    return backward(grad)


writes_past_its_gradient = planted(backward=_writes_past_its_gradient)


@pytest.mark.parametrize(
    "change",
    [
        {"halves": ("diagnal",)},
        {"table_dtypes": ("float31",)},
        {"rounded_sums": ("nope",)},
        {"outputs": (Output("y", alias="nothing"),)},
        {"arguments": {"dim": "width"}},
        {"pad_rows": "whatever"},
        {"dtypes": ()},
        {"axes": {"heads": (3,), "dim": ()}},
        {"axes": {"heads": 3, "dim": (4,)}},
        {"inputs": (Input("x", "rows heads depth"),)},
    ],
)
def test_a_misspelt_contract_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected") as caught:
        replace(SPEC, **change)
    assert "\n" not in str(caught.value)


def test_a_sum_over_one_head_may_turn_minus_zero_into_zero() -> None:
    """``0 + x`` is a sum, not a copy; only a contract that declares it may lose the sign."""
    case = replace(small_case("float32"), axes={"heads": 5, "dim": 7, "tokens": 8})
    copied = {"reference": f"{__name__}:kept", "terms": None}
    assert _run("from_zero", case, **copied, sums=("y",)).findings == ()
    assert _run("from_zero", case, **copied).findings != ()


BOTH = {"outputs": (Output("copied"), Output("negated")), "terms": None}
SIGNED = dict.fromkeys(("x", "r", "copied.grad", "negated.grad"), "contiguous") | {
    "values": "normal"
}


def copied_and_negated(
    x: Tensor, r: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> tuple[Tensor, Tensor]:
    """x and -r."""
    return x * 1, r * 1 if magnitude else -r


def _subtracted(tensor: Tensor) -> Tensor:
    """-x as Triton computes it, which makes +0 of either zero."""
    return 0 - tensor


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, copy: Any, copy_back: Any) -> Any:
        ctx.copy = copy_back
        return copy(x), _subtracted(r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.copy(grads[0]), _subtracted(grads[1]), None, None


def _from_zero(tensor: Tensor) -> Tensor:
    return 0 + tensor


def negates_as_triton_does(x: Tensor, r: Tensor) -> Any:
    return _Both.apply(x, r, torch.clone, torch.clone)


def loses_a_sign_forward(x: Tensor, r: Tensor) -> Any:
    return _Both.apply(x, r, _from_zero, torch.clone)


def loses_a_sign_backward(x: Tensor, r: Tensor) -> Any:
    return _Both.apply(x, r, torch.clone, _from_zero)


def forgets_to_negate(x: Tensor, r: Tensor) -> Any:
    copied, negated = negates_as_triton_does(x, r)
    return copied, -negated


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("negates_as_triton_does", []),
        ("loses_a_sign_forward", ["copied"]),
        ("loses_a_sign_backward", ["x.grad"]),
        ("forgets_to_negate", ["negated", "r.grad"]),
    ],
)
def test_the_sign_of_a_zero_counts_in_a_copy_and_not_in_a_negation(
    name: str, wrong: list[str]
) -> None:
    axes = {"heads": 5, "dim": 7, "tokens": 8}
    case = replace(small_case("float32"), axes=axes, variants=SIGNED)
    found = _run(name, case, reference=f"{__name__}:copied_and_negated", **BOTH).findings
    assert [finding.tensor for finding in found if finding.check == "values"] == wrong
    assert bool(found) == bool(wrong)


def rolled(
    x: Tensor, r: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> Tensor:
    """Each token has the lanes of x in another order.  It slices: autograd adds the two parts of
    its gradient to zeros, which makes +0 of -0."""
    return torch.cat([x[..., 1:], x[..., :1], r[..., :0]], dim=-1)


class _Rolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, lose: Any) -> Tensor:
        return lose(x).roll(-1, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].roll(1, -1), torch.zeros_like(grads[0]), None


def rolls_exactly(x: Tensor, r: Tensor) -> Tensor:
    return _Rolled.apply(x, r, torch.clone)


def rolls_and_loses_a_sign(x: Tensor, r: Tensor) -> Tensor:
    return _Rolled.apply(x, r, _from_zero)


def test_a_gradient_that_the_reference_adds_up_has_no_sign_of_zero() -> None:
    case = replace(small_case("float32"), axes={"heads": 5, "dim": 7, "tokens": 8})
    contract = {"reference": f"{__name__}:rolled", "terms": None}
    assert _run("rolls_exactly", case, **contract).findings == ()
    found = _run("rolls_and_loses_a_sign", case, **contract).findings
    assert [(finding.check, finding.tensor) for finding in found] == [("values", "y")]


def kept(
    x: Tensor, r: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> Tensor:
    """y = x, with the sign of every zero."""
    return torch.cat([x * 1, r[..., :0]], dim=-1)


def from_zero(x: Tensor, r: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(x) + x, r[..., :0]], dim=-1)


def test_a_reference_that_fails_is_named() -> None:
    with pytest.raises(ValueError, match=r"Expected the reference .*to run.*mend it"):
        _run("honest", small_case("float32"), reference=f"{__name__}:honest")


def test_a_nan_of_another_payload_is_no_change() -> None:
    case = small_case("float32")
    case = replace(case, variants={**case.variants, "values": "nan_lane"})
    other, honest = _run("other_nan", case), _run("honest", case)
    assert other.findings == honest.findings == ()
    assert other.digests == honest.digests


def test_a_case_runs_in_one_thread_and_others_keep_theirs() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert _run("needs_one_thread", small_case("float32")).findings == ()
        with pytest.raises(ValueError, match="reference"):
            _run("honest", small_case("float32"), reference=f"{__name__}:_raise")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def needs_one_thread(x: Tensor, r: Tensor) -> Tensor:
    """Raises where torch has more than one."""
    assert torch.get_num_threads() == 1
    return blend.honest(x, r)
