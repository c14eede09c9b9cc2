"""Results in one memory, and the phase in which a guard was written: planted and honest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from parity.generate import plan
from parity.record import Record
from parity.runner import run_case
from parity.sharing import overlap
from parity.spec import Input, OpSpec, Output
from suites.meta.blend import write_past

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def spec(name: str) -> OpSpec:
    """y = x and z = x + r, with the gradients dy + dz and dz."""
    return OpSpec(
        name="both",
        candidate=f"{__name__}:{name}",
        reference=f"{__name__}:reference",
        inputs=(Input("x", "rows dim"), Input("r", "rows dim")),
        outputs=(Output("y"), Output("z")),
        axes={"dim": (4,)},
        dtypes=("float32",),
        values=("normal",),
        gradients=("contiguous",),
    )


def reference(
    x: Tensor, r: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> Pair:
    return x.clone(), (x.to(compute_dtype) + r.to(compute_dtype)).to(x.dtype)


class _Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, forward: Any, backward: Any) -> Any:
        ctx.backward = backward
        ctx.save_for_backward(x)
        return forward(x, r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *ctx.backward(*ctx.saved_tensors, *grads), None, None


def forward(x: Tensor, r: Tensor) -> Pair:
    return x.clone(), x + r


def backward(x: Tensor, dy: Tensor, dz: Tensor) -> Pair:
    return dy + dz, dz.clone()


def planted(forward: Any = forward, backward: Any = backward) -> Callable[..., Pair]:
    return lambda x, r: _Both.apply(x, r, forward, backward)


def halves_of_one_buffer(x: Tensor, r: Tensor) -> Pair:
    buffer = torch.empty(2, *x.shape)
    buffer[0], buffer[1] = x, x + r
    return buffer[0], buffer[1]


def one_buffer_for_both(x: Tensor, r: Tensor) -> Pair:
    """Right values of z, and y overlaps it."""
    buffer = torch.empty(x.numel() + 1)
    y, z = buffer[:-1].view_as(x), buffer[1:].view_as(x)
    y.copy_(x)
    z.copy_(x + r)
    return y, z


def incoming_as_gradient(x: Tensor, dy: Tensor, dz: Tensor) -> Pair:
    return dy + dz, dz


def one_gradient_twice(x: Tensor, dy: Tensor, dz: Tensor) -> Pair:
    total = dy + dz
    return total, total


def writes_before_saved(x: Tensor, dy: Tensor, dz: Tensor) -> Pair:
    x.as_strided((1,), (1,), x.storage_offset() - 1)[0] = 1.0
    return backward(x, dy, dz)


def writes_before_input(x: Tensor, r: Tensor) -> Pair:
    x.detach().as_strided((1,), (1,), x.storage_offset() - 1)[0] = 1.0
    return forward(x, r)


class _Scratch(torch.autograd.Function):
    """Backward writes past memory that forward allocated and kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor) -> Pair:
        ctx.scratch = torch.empty_like(x)
        return forward(x, r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Pair:
        write_past(ctx.scratch)
        return backward(ctx.scratch, *grads)


honest = planted()
separate_halves = planted(halves_of_one_buffer)
overlapping = planted(one_buffer_for_both)
passes_a_gradient_on = planted(backward=incoming_as_gradient)
shares_a_gradient = planted(backward=one_gradient_twice)
backward_before_its_input = planted(backward=writes_before_saved)
forward_before_its_input = planted(writes_before_input)


def backward_past_its_scratch(x: Tensor, r: Tensor) -> Pair:
    return _Scratch.apply(x, r)  # not `apply` itself, which takes no names in every torch


def run(name: str) -> Record:
    return run_case(spec(name), plan(spec(name), 1, 0)[0])


def found(name: str) -> set[tuple[str, str, str]]:
    return {(item.check, item.tensor, item.error) for item in run(name).findings}


@pytest.mark.parametrize("name", ["honest", "separate_halves"])
def test_outputs_in_memory_of_their_own_pass(name: str) -> None:
    record = run(name)
    assert (record.status, record.hazards) == ("passed", ())


def test_outputs_that_overlap_are_found() -> None:
    assert ("aliasing", "z", "shares y") in found("overlapping")


def test_shared_gradients_are_hazards_and_no_failures() -> None:
    passed = run("passes_a_gradient_on")
    assert passed.status == "passed"
    told = [(item.tensor, item.error) for item in passed.hazards]
    assert told == [("r.grad", "shares the incoming gradient of z")]
    shared = {(item.tensor, item.error) for item in run("shares_a_gradient").hazards}
    assert shared == {("r.grad", "shares x.grad")}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("backward_before_its_input", "backward"),
        ("backward_past_its_scratch", "backward"),
        ("forward_before_its_input", "forward"),
    ],
)
def test_a_guard_is_written_in_the_phase_that_wrote_it(name: str, phase: str) -> None:
    assert found(name) == {("guards", phase, "written outside")}


def test_overlap_is_of_bytes_and_not_of_storages() -> None:
    memory = torch.zeros(4, 4)
    assert overlap(memory, memory[1:2])
    assert overlap(memory[:, ::2], memory[:, 2:])
    assert not overlap(memory[:, ::2], memory[:, 1::2])
    assert not overlap(memory[:2], memory[2:])
    assert not overlap(memory[:0], memory)
    assert not overlap(memory, memory.clone())
    assert overlap(memory.view(torch.int16)[:, 1], memory[:, 0])
    assert not overlap(memory.view(torch.int16)[:, 2], memory[:, 0])
