"""A small op in plain PyTorch, y = 0.75 x - 0.375 r, whose two steps a planted bug can replace."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from parity.case import Case
from parity.spec import Input, OpSpec, Output

Tensor = torch.Tensor
SPEC = OpSpec(
    name="blend",
    candidate=f"{__name__}:honest",
    reference=f"{__name__}:reference",
    inputs=(Input("x", "rows heads dim"), Input("r", "rows heads dim")),
    outputs=(Output("y"),),
    axes={"heads": (3, 5), "dim": (4, 7)},
    terms=2,
)


def reference(
    x: Tensor, r: Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> Tensor:
    """y = 0.75 x - 0.375 r."""
    wide_x, wide_r = x.to(compute_dtype), r.to(compute_dtype)
    right = 0.375 * wide_r
    return (0.75 * wide_x + (right if magnitude else -right)).to(x.dtype)


class _Blend(torch.autograd.Function):
    """The honest op; each planted bug replaces one of its two steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.step = backward
        return forward(x, r)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *ctx.step(grads[0]), None, None


def forward(x: Tensor, r: Tensor) -> Tensor:
    """The honest forward step."""
    y = torch.empty_like(x)
    y.copy_(0.75 * x.float() - 0.375 * r.float())
    return y


def backward(grad: Tensor) -> tuple[Tensor, Tensor]:
    """The honest backward step."""
    return (0.75 * grad.float()).to(grad.dtype), (-0.375 * grad.float()).to(grad.dtype)


def honest(x: Tensor, r: Tensor) -> Tensor:
    """The op as its contract promises it."""
    return _Blend.apply(x, r, forward, backward)


def planted(forward: Any = forward, backward: Any = backward) -> Callable[..., Tensor]:
    """The op with one of its steps replaced."""
    return lambda x, r: _Blend.apply(x, r, forward, backward)


def write_past(tensor: Tensor) -> None:
    """Write one element behind the memory of a tensor on the host, as a kernel may: torch would
    refuse."""
    memory = tensor.untyped_storage()
    ctypes.memset(memory.data_ptr() + memory.nbytes(), 0x3F, tensor.element_size())


def small_case(dtype: str, **variants: str) -> Case:
    """The smallest case with several rows and heads; ``variants`` name memory layouts or values."""
    layout = {"x": "contiguous", "r": "contiguous", "y.grad": "contiguous"}
    layout |= {"values": "normal"} | variants
    return Case("blend", "plain", dtype, {"heads": 3, "dim": 4, "tokens": 2}, variants=layout)
