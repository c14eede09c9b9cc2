"""Split a joint key/value projection; give every head's key the rotated shared key."""

from typing import Any

import torch
from torch import Tensor

from .positions import look_up_tables
from .rotation import check_rotation, rotate


def fused_mla_rope_kv_split(
    kv: Tensor,
    k_pos_emb: Tensor,
    cos: Tensor,
    sin: Tensor,
    emb_dim: int,
    k_dim: int,
    v_dim: int,
    cu_seqlens_kv: Tensor | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    rotary_interleaved: bool = False,
    remove_interleaving: bool = False,
    *,
    cu_seqlens_padded: Tensor | None = None,
    whole_pack_table: bool = False,
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
) -> tuple[Tensor, Tensor]:
    """Key ``[k | rotated k_pos_emb]`` and value of every head, both new.

    ``k_pos_emb`` is read as pairs ``(2i, 2i+1)`` and stored in halves ``[left | right]``, or as
    pairs if ``remove_interleaving``.  Every operation is in ``compute_dtype``, with one rounding to
    the dtype of ``kv``, whose own lanes keep their bits.  The gradient of ``k_pos_emb`` sums the
    heads in ascending order, rotates the sum and rounds once.

    Args:
        kv: ``[S, B, H, k_dim + v_dim]`` (SBHD) or ``[T, H, k_dim + v_dim]`` (THD).
        k_pos_emb: ``[S, B, 1, emb_dim]`` or ``[T, 1, emb_dim]``, shared by the heads.
        cos, sin: ``[P, emb_dim]`` or ``[P, 1, 1, emb_dim]``; their halves may differ.
        cu_seqlens_kv: ``[N + 1]`` int32 or int64, THD only, counted over all ranks.
        cp_rank, cp_size: THD only: which zigzag chunks of each sequence the tensors hold.
        cu_seqlens_padded: ``[N + 1]``, where the rows of each sequence start, if that differs.
        whole_pack_table: the tables run over the pack, so that a sequence begins at its own row.
        magnitude: add where the formula subtracts.

    Returns:
        ``[..., H, k_dim + emb_dim]`` and ``[..., H, v_dim]``.  Rows of no sequence are rotated as
        if at position 0.

    Raises:
        ValueError: shapes that do not fit, malformed packing, or positions outside the tables.
    """
    check_rotation(emb_dim, k_pos_emb.shape[-1], rotary_interleaved, k_dim, v_dim)
    *lead, heads, lanes = kv.shape
    if heads == 0 or lanes != k_dim + v_dim or k_pos_emb.shape[:-1] != (*lead, 1):
        raise ValueError(
            f"Expected kv [..., H > 0, {k_dim + v_dim}] and k_pos_emb [..., 1, {emb_dim}] but got "
            f"{tuple(kv.shape)} and {tuple(k_pos_emb.shape)}."
        )
    cos, sin = look_up_tables(
        cos, sin, kv.shape, emb_dim, cu_seqlens_kv, cu_seqlens_padded, None,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip
    rotated = rotate(
        k_pos_emb,
        cos,
        sin,
        remove_interleaving=remove_interleaving,
        compute_dtype=compute_dtype,
        magnitude=magnitude,
    )
    k, v = kv.split([k_dim, v_dim], dim=-1)
    key = torch.cat([k, _ShareOverHeads.apply(rotated, kv.shape[-2], kv.dtype)], dim=-1)
    return key, v.clone(memory_format=torch.contiguous_format)


class _ShareOverHeads(torch.autograd.Function):
    """Round ``[..., 1, R]`` to a dtype and repeat it to ``[..., H, R]``.

    Its own function because the gradient of ``expand`` rounds the sum of the heads to the storage
    dtype, in an order that PyTorch does not promise.
    """

    @staticmethod
    def forward(ctx: Any, shared: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        ctx.compute_dtype = shared.dtype
        return shared.to(dtype).repeat_interleave(heads, dim=-2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        first, *others = (head.to(ctx.compute_dtype) for head in grads[0].unbind(-2))
        for head in others:
            first = first + head
        return first.unsqueeze(-2), None, None
