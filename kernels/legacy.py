"""The names of Megatron-Core before 2026, with its parameters in their order."""

from torch import Tensor

from . import tiles
from .inplace import fused_mla_rope_inplace
from .kv_split import fused_mla_rope_kv_split

TILES = tiles.TILES


def fused_apply_mla_rope_for_q(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    qk_head_dim: int,
    emb_dim: int,
    cu_seqlens_q: Tensor | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    rotary_interleaved: bool = False,
    *,
    tile: int | None = None,
) -> Tensor:
    """:func:`.inplace.fused_mla_rope_inplace` without flags; ``qk_head_dim`` is its ``nope_dim``.

    Mutates ``t`` and marks it dirty; shapes, dtypes and errors are the same.
    """
    return fused_mla_rope_inplace(
        t, cos, sin, qk_head_dim, emb_dim, cu_seqlens_q, cp_rank, cp_size, rotary_interleaved,
        tile=tile,
    )  # fmt: skip


def fused_apply_mla_rope_for_kv(
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
    *,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`.kv_split.fused_mla_rope_kv_split` without flags; shapes, dtypes, errors as there."""
    return fused_mla_rope_kv_split(
        kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim, cu_seqlens_kv, cp_rank, cp_size,
        rotary_interleaved, tile=tile,
    )  # fmt: skip
