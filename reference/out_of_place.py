"""Rotate the leading or trailing lanes of every head of a tensor."""

import torch
from torch import Tensor

from .positions import look_up_tables
from .rotation import check_rotation, rotate


def fused_mla_rope_out_of_place(
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
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
) -> Tensor:
    """Rotate the last ``emb_dim`` lanes of ``t`` (the first ones if ``rope_first``).

    The rotated lanes are read as pairs ``(2i, 2i+1)`` and stored in halves ``[left | right]``, or
    as pairs if ``remove_interleaving``.  The other ``nope_dim`` lanes keep their bits.  Every
    operation is in ``compute_dtype``, with one rounding to the dtype of ``t``.

    Args:
        t: ``[S, B, H, nope_dim + emb_dim]`` (SBHD) or ``[T, H, nope_dim + emb_dim]`` (THD).
        cos, sin: ``[P, emb_dim]`` or ``[P, 1, 1, emb_dim]``; their halves may differ.
        cu_seqlens_q: ``[N + 1]`` int32 or int64, THD only, counted over all ranks.
        cp_rank, cp_size: THD only: which zigzag chunks of each sequence ``t`` holds.
        inverse: negate the sine.
        position_ids: ``[T]`` int32 or int64, THD only: the table row of each token.
        cu_seqlens_padded: ``[N + 1]``, where the rows of each sequence start, if that differs.
        whole_pack_table: the tables run over the pack, so that a sequence begins at its own row.
        magnitude: add where the formula subtracts.

    Returns:
        A new tensor like ``t``.  Rows of no sequence are rotated as if at position 0.

    Raises:
        ValueError: shapes that do not fit, malformed packing, or positions outside the tables.
    """
    check_rotation(emb_dim, t.shape[-1] - nope_dim, rotary_interleaved, nope_dim)
    cos, sin = look_up_tables(
        cos, sin, t.shape, emb_dim, cu_seqlens_q, cu_seqlens_padded, position_ids,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip

    def rotated(rope: Tensor) -> Tensor:
        return rotate(
            rope,
            cos,
            sin,
            inverse=inverse,
            remove_interleaving=remove_interleaving,
            compute_dtype=compute_dtype,
            magnitude=magnitude,
        ).to(t.dtype)

    if rope_first:
        rope, nope = t.split([emb_dim, nope_dim], dim=-1)
        return torch.cat([rotated(rope), nope], dim=-1)
    nope, rope = t.split([nope_dim, emb_dim], dim=-1)
    return torch.cat([nope, rotated(rope)], dim=-1)
