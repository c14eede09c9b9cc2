"""Rotate the leading or trailing lanes of every head of a tensor where they are."""

from typing import Any

import torch
from torch import Tensor

from . import tiles
from .launch import not_compiled, once_differentiable
from .out_of_place import Rotation, forward_launch, gradient
from .positions import Lookup, in_use

TILES = tiles.TILES


class _RotateInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, lookup: Lookup, flags: Rotation) -> Tensor:
        launch, lookup = forward_launch((t, *lookup), flags, True), in_use(lookup)
        launch(t, t, *lookup)
        ctx.mark_dirty(t)
        ctx.save_for_backward(*lookup)
        ctx.flags = flags
        return t

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gradient(ctx, grad), None, None


@not_compiled
def fused_mla_rope_inplace(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    nope_dim: int,
    emb_dim: int,
    cu_seqlens_q: Tensor | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    rotary_interleaved: bool = False,
    inverse: bool = False,
    remove_interleaving: bool = False,
    position_ids: Tensor | None = None,
    rope_first: bool = False,
    *,
    cu_seqlens_padded: Tensor | None = None,
    whole_pack_table: bool = False,
    tile: int | None = None,
) -> Tensor:
    """:func:`.out_of_place.fused_mla_rope_out_of_place` that overwrites and returns ``t``.

    ``t`` is marked dirty: a backward that saved its old value raises instead of being silently
    wrong.  Autograd also refuses leaves that require a gradient, views of them, and outputs of
    ``split``, ``chunk`` and ``unbind``, for the last two kinds only after ``t`` was written; use
    the out-of-place op for those.  The backward writes a new tensor, never its incoming gradient.

    Args: shapes, dtypes and flags as there.  Two elements of ``t`` may not share memory.

    Returns:
        ``t``.

    Raises:
        ValueError: as there, and for a tensor that overlaps itself or is a leaf.
    """
    flags = Rotation(
        nope_dim, emb_dim, rotary_interleaved, inverse, remove_interleaving, rope_first, tile,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip
    lookup = (cos, sin, cu_seqlens_q, cu_seqlens_padded, position_ids)
    if t.requires_grad and t.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            "Expected t to be the result of an operation but it is a leaf that requires a "
            "gradient; use fused_mla_rope_out_of_place."
        )
    return _RotateInPlace.apply(t, lookup, flags)  # type: ignore[no-any-return]
