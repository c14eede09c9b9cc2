"""What the consumers share: rope ops by one switch, products rounded once, causal attention.

Everything between two roundings is in float32 (float64 for float64 tensors), so that the same
inputs give the same bits whoever rotates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kv_split import fused_mla_rope_kv_split
from .out_of_place import fused_mla_rope_out_of_place


class RopeOps(NamedTuple):
    """The switch between fused and unfused: two functions with the signatures of those below."""

    rotate: Callable[..., Tensor]
    split: Callable[..., tuple[Tensor, Tensor]]


UNFUSED = RopeOps(fused_mla_rope_out_of_place, fused_mla_rope_kv_split)


def product(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """``torch.einsum`` of two tensors in float32 or wider, contiguous, not rounded back."""
    wide = torch.promote_types(a.dtype, torch.float32)
    return torch.einsum(equation, a.to(wide), b.to(wide)).contiguous()


def project(equation: str, x: Tensor, weight: Tensor) -> Tensor:
    """:func:`product` rounded once to the dtype of ``x``."""
    return product(equation, x, weight).to(x.dtype)


class NormalizedProjection(torch.autograd.Function):
    """Project to heads and divide every head by its root mean square.

    ``x [S, B, M]`` and ``weight [M, H, D]`` give ``[S, B, H, D]``.  It keeps its **output** for the
    gradient of the weight, as fused projections do: whoever overwrites the output spoils dW.  With
    y = z / r and r^2 = mean(z^2) + eps, ``dz = (g - y mean(g y)) / r``.
    """

    EPS = 2.0**-20

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        z = product("sbm,mhd->sbhd", x, weight)
        inverse = (z.square().mean(-1, keepdim=True) + NormalizedProjection.EPS).rsqrt()
        output = (z * inverse).to(x.dtype)
        ctx.save_for_backward(x, weight, inverse, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, inverse, output = ctx.saved_tensors
        g, y = grads[0].to(inverse.dtype), output.to(inverse.dtype)
        dz = (g - y * (g * y).mean(-1, keepdim=True)) * inverse
        dx = product("sbhd,mhd->sbm", dz, weight)
        dweight = product("sbm,sbhd->mhd", x, dz)
        return dx.to(x.dtype), dweight.to(weight.dtype)


def causal(scores: Tensor) -> Tensor:
    """Scores ``[..., S, T]`` with minus infinity where the key is later than the query."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, float("-inf"))
