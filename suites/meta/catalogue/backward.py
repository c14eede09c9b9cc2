"""Bugs of autograd wrappers: gradients, saved tensors, memory that is not the wrapper's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from parity.kernels.concat import fused_mla_rope_concat
from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.reference import out_of_place as reference

from .bug import CONCAT, IN_PLACE, ROTATE, SPLIT, plant
from .calls import rotate

Change = Callable[[Tensor], Tensor]


class _Backward(torch.autograd.Function):
    """The identity, with a function of the gradient as its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.change(grads[0]), None


def _before(change: Change, **arguments: Any) -> Tensor:
    """The honest op, whose incoming gradient is changed first."""
    return _Backward.apply(rotate(**arguments), change)


def _after(change: Change, **arguments: Any) -> Tensor:
    """The honest op, whose gradient of ``t`` is changed at last."""
    return rotate(**arguments | {"t": _Backward.apply(arguments["t"], change)})


def _packed(tensor: Tensor) -> Tensor:
    """The tensor read as if its elements lay side by side from its first one on."""
    steps = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, steps, tensor.storage_offset())


def _gradient(grad: Tensor, arguments: dict[str, Any]) -> Tensor:
    """What the honest op passes back."""
    with torch.enable_grad():
        t = torch.zeros_like(grad, requires_grad=True)
        return torch.autograd.grad(rotate(**arguments | {"t": t}), t, grad)[0]


Backward = Callable[[Tensor, dict[str, Any]], Tensor]


class _Rotated(torch.autograd.Function):
    """The honest forward with a backward of its own, given the incoming gradient and the call."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, arguments: dict[str, Any], backward: Backward) -> Tensor:
        ctx.arguments, ctx.backward = arguments, backward
        return rotate(**arguments | {"t": t.detach()})

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.backward(grads[0], ctx.arguments), None, None


class _Unmarked(torch.autograd.Function):
    """In place, as a kernel writes: no version counter moves, and nothing is marked dirty."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, arguments: dict[str, Any]) -> Tensor:
        ctx.arguments = arguments
        fused_mla_rope_inplace(**arguments | {"t": t.data})
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gradient(grads[0], ctx.arguments), None


# --- what autograd saved


@plant(IN_PLACE, "effect:saved_tensors", "saved by the op before")
def overwrites_what_was_saved(**arguments: Any) -> Tensor:
    """The query is rotated where the op before it saved its output, and autograd is not told."""
    return _Unmarked.apply(arguments["t"], arguments)


@plant(IN_PLACE, "effect:saved_tensors", "saved by the op before", flags={"inverse": True})
def overwrites_the_saved_output(**arguments: Any) -> Tensor:
    """The inverse rotation goes through a view of the output that attention saved."""
    return _Unmarked.apply(arguments["t"], arguments)


# --- gradients


@plant(ROTATE, "written", "t.grad")
def leaves_nope_unwritten(**arguments: Any) -> Tensor:
    """The backward moves to a buffer of its own and still copies nothing but rotated lanes."""

    def skips(grad: Tensor, arguments: dict[str, Any]) -> Tensor:
        result, nope = torch.empty_like(grad), arguments["nope_dim"]
        result[..., nope:] = _gradient(grad, arguments)[..., nope:]
        return result

    return _Rotated.apply(arguments["t"], arguments, skips)


@plant(ROTATE, "gradients_unchanged", "incoming gradient of output")
def rotates_the_incoming_gradient(**arguments: Any) -> Tensor:
    """The backward writes over the gradient that it was given."""

    def writes(grad: Tensor, arguments: dict[str, Any]) -> Tensor:
        return grad.copy_(_gradient(grad, arguments))

    return _Rotated.apply(arguments["t"], arguments, writes)


@plant(ROTATE, "runs", "backward", flags={"remove_interleaving": True})
def names_what_is_not_there(**arguments: Any) -> Tensor:
    """A branch of the backward that no test takes uses a name that does not exist."""

    def misspelt(grad: Tensor) -> Tensor:
        raise NameError("name 'sin_chached' is not defined")

    branch = misspelt if arguments["remove_interleaving"] else lambda grad: grad
    return _before(branch, **arguments)


@plant(ROTATE, "values", "t.grad", variants={"output.grad": "sliced"})
def takes_gradients_for_packed(**arguments: Any) -> Tensor:
    """The backward reads its gradient with the strides of a contiguous one."""
    return _before(_packed, **arguments)


@plant(ROTATE, "values", "t.grad", variants={"output.grad": "expanded"})
def never_calls_is_contiguous(**arguments: Any) -> Tensor:
    """`grad.is_contiguous` without its brackets is true, so that nothing is ever copied."""

    def read(grad: Tensor) -> Tensor:
        return _packed(grad if grad.is_contiguous else grad.contiguous())

    return _before(read, **arguments)


@plant(ROTATE, "values", "t.grad")
def passes_ones_through(**arguments: Any) -> Tensor:
    """The copied lanes get the gradient 1, which is right under `sum()`."""

    def ones(grad: Tensor) -> Tensor:
        kept = grad.clone()
        kept[..., : arguments["nope_dim"]] = 1.0
        return kept

    return _after(ones, **arguments)


@plant(ROTATE, "values", "t.grad", halves="different")
def takes_halves_for_equal(**arguments: Any) -> Tensor:
    """The backward uses the left half of the table for both."""
    half = arguments["emb_dim"] // 2
    equal = {n: arguments[n][:, :half].repeat(1, 2) for n in ("cos", "sin")}
    return _Rotated.apply(arguments["t"], arguments, lambda grad, a: _gradient(grad, a | equal))


# --- outputs and strides


class _Unwritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


@plant(SPLIT, "written", "key")
def forgets_the_key(**arguments: Any) -> tuple[Tensor, Tensor]:
    """One of two outputs is no longer written, and the other is all that was looked at."""
    key, value = fused_mla_rope_kv_split(**arguments)
    return _Unwritten.apply(key), value


@plant(SPLIT, "runs", "forward", axes={"v_dim": 0})
def infers_a_size_of_nothing(**arguments: Any) -> tuple[Tensor, Tensor]:
    """The value is flattened by `view(-1, v_dim)`, which torch refuses where v_dim is 0."""
    key, value = fused_mla_rope_kv_split(**arguments)
    return key, value.view(-1, arguments["v_dim"]).view(value.shape)


@plant(ROTATE, "values", "output", variants={"t": "sliced"})
def ignores_strides(**arguments: Any) -> Tensor:
    """A slice of a wider projection is read as if it were packed."""
    return rotate(**arguments | {"t": _packed(arguments["t"])})


@plant(CONCAT, "values", "output", variants={"nope": "sliced"})
def takes_one_stride_for_both(**arguments: Any) -> Tensor:
    """Both parts are read with the head stride of the first."""
    nope, rope = arguments["nope"], arguments["rope"]
    steps = list(rope.stride())
    steps[-2] = nope.stride(-2)
    shifted = rope.as_strided(rope.shape, steps, rope.storage_offset())
    return fused_mla_rope_concat(**arguments | {"rope": shifted})


# --- runs that differ

_RUN = count()  # of the candidate, from the first on that a record is made of


@plant(ROTATE, "effect:repeats", "output")
def is_wrong_now_and_then(**arguments: Any) -> Tensor:
    """One element in some runs is far off, as where a race strikes."""
    output = rotate(**arguments)
    if next(_RUN):
        with torch.no_grad():
            output[0, 0, 0, -1] += 3.0
    return output


ROUNDED_ONCE = replace(ROTATE, bit_equal=False, dtypes=("float32",))


def contracted(tile: int | None = None, **arguments: Any) -> Tensor:
    """The rotation with products that are not rounded before they meet."""
    return reference.fused_mla_rope_out_of_place(**arguments, compute_dtype=torch.float64)


@plant(ROUNDED_ONCE, "values", "output", twin=contracted)
def rounds_a_product_to_16_bits(tile: int | None = None, **arguments: Any) -> Tensor:
    """A product is rounded to bfloat16; another contraction of the products passes."""
    return reference.fused_mla_rope_out_of_place(**arguments, compute_dtype=torch.bfloat16)


@plant(ROUNDED_ONCE, "effect:repeats", "output", twin=contracted)
def chooses_by_time(tile: int | None = None, **arguments: Any) -> Tensor:
    """Which of two right kernels runs depends on what was faster, and so do the bits."""
    return contracted(**arguments) if next(_RUN) else rotate(**arguments)
