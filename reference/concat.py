"""Pack the nope and rope parts of every head into one tensor, rotating the rope part."""

import torch
from torch import Tensor

from .positions import look_up_tables
from .rotation import check_rotation, rotate


def fused_mla_rope_concat(
    nope: Tensor,
    rope: Tensor,
    cos: Tensor,
    sin: Tensor,
    cu_seqlens: Tensor | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    inverse: bool = False,
    remove_interleaving: bool = False,
    position_ids: Tensor | None = None,
    *,
    cu_seqlens_padded: Tensor | None = None,
    whole_pack_table: bool = False,
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
) -> Tensor:
    """``[nope | rotated rope]`` for every head, contiguous.

    The rope lanes are read as pairs ``(2i, 2i+1)`` and stored in halves ``[left | right]``, or as
    pairs if ``remove_interleaving``.  Every operation is in ``compute_dtype``, with one rounding to
    the dtype of ``nope``, whose own lanes keep their bits.

    Args:
        nope: ``[S, B, H, N]`` (SBHD) or ``[T, H, N]`` (THD); N may be 0.
        rope: ``[S, B, H, R]`` or ``[T, H, R]``, R even.
        cos, sin: ``[P, R]`` or ``[P, 1, 1, R]``; their halves may differ.
        cu_seqlens: ``[sequences + 1]`` int32 or int64, THD only, counted over all ranks.
        cp_rank, cp_size: THD only: which zigzag chunks of each sequence the tensors hold.
        inverse: negate the sine.
        position_ids: ``[T]`` int32 or int64, THD only: the table row of each token.
        cu_seqlens_padded: where the rows of each sequence start, if that differs.
        whole_pack_table: the tables run over the pack, so that a sequence begins at its own row.
        magnitude: add where the formula subtracts.

    Returns:
        ``[S, B, H, N + R]`` or ``[T, H, N + R]``.  Rows of no sequence are rotated as if at
        position 0.

    Raises:
        ValueError: shapes that do not fit, malformed packing, or positions outside the tables.
    """
    if nope.shape[:-1] != rope.shape[:-1] or nope.dtype != rope.dtype:
        raise ValueError(
            f"Expected nope and rope of one dtype with equal leading sizes but got {nope.dtype} "
            f"{tuple(nope.shape)} and {rope.dtype} {tuple(rope.shape)}."
        )
    emb_dim = rope.shape[-1]
    check_rotation(emb_dim, emb_dim)
    cos, sin = look_up_tables(
        cos, sin, rope.shape, emb_dim, cu_seqlens, cu_seqlens_padded, position_ids,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip
    rotated = rotate(
        rope,
        cos,
        sin,
        inverse=inverse,
        remove_interleaving=remove_interleaving,
        compute_dtype=compute_dtype,
        magnitude=magnitude,
    )
    return torch.cat([nope, rotated.to(rope.dtype)], dim=-1)
