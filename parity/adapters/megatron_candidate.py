"""Megatron-Core's fused MLA RoPE functions, one callable each, with the tile as a parameter.

Parameters are named as upstream's; ``options`` are its optional ones.  Errors: ValueError where no
usable Megatron-Core is on the import path, Unsupported where this revision lacks the function, the
parameter or the tile.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from .megatron_module import call, fused_module

if TYPE_CHECKING:
    from torch import Tensor


def modules() -> tuple[ModuleType, ...]:
    """The code under test, for the provenance of an arm: Megatron's module, not this one.

    Raises:
        ValueError: no import root holds a usable Megatron-Core.
    """
    return (fused_module(),)


def fused_apply_mla_rope_for_q(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    qk_head_dim: int,
    emb_dim: int,
    *,
    BLOCK_H: int,
    **options: Any,
) -> Tensor:
    """Query ``[S, B, H, D]`` or ``[T, H, D]``, in place; ``D = qk_head_dim + emb_dim``."""
    required = (t, cos, sin, qk_head_dim, emb_dim)
    output: Tensor = call("fused_apply_mla_rope_for_q", BLOCK_H, required, options)
    return output


def fused_apply_mla_rope_for_kv(
    kv: Tensor,
    k_pos_emb: Tensor,
    cos: Tensor,
    sin: Tensor,
    emb_dim: int,
    k_dim: int,
    v_dim: int,
    *,
    BLOCK_H: int,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Key ``[.., H, k_dim + emb_dim]`` and value ``[.., H, v_dim]`` of ``kv`` and a shared key."""
    required = (kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim)
    output: tuple[Tensor, Tensor] = call("fused_apply_mla_rope_for_kv", BLOCK_H, required, options)
    return output


def fused_mla_rope_inplace(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    nope_dim: int,
    emb_dim: int,
    *,
    BLOCK_H: int,
    **options: Any,
) -> Tensor:
    """``[S, B, H, D]`` or ``[T, H, D]``, in place; ``D = nope_dim + emb_dim``."""
    required = (t, cos, sin, nope_dim, emb_dim)
    output: Tensor = call("fused_mla_rope_inplace", BLOCK_H, required, options)
    return output


def fused_mla_rope_out_of_place(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    nope_dim: int,
    emb_dim: int,
    *,
    BLOCK_H: int,
    **options: Any,
) -> Tensor:
    """``[S, B, H, D]`` or ``[T, H, D]``, as a new tensor."""
    required = (t, cos, sin, nope_dim, emb_dim)
    output: Tensor = call("fused_mla_rope_out_of_place", BLOCK_H, required, options)
    return output


def fused_mla_rope_kv_split(
    kv: Tensor,
    k_pos_emb: Tensor,
    cos: Tensor,
    sin: Tensor,
    emb_dim: int,
    k_dim: int,
    v_dim: int,
    *,
    BLOCK_H: int,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Key ``[.., H, k_dim + emb_dim]`` and value ``[.., H, v_dim]`` of ``kv`` and a shared key."""
    required = (kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim)
    output: tuple[Tensor, Tensor] = call("fused_mla_rope_kv_split", BLOCK_H, required, options)
    return output


def fused_mla_rope_concat(
    nope: Tensor, rope: Tensor, cos: Tensor, sin: Tensor, *, BLOCK_H: int, **options: Any
) -> Tensor:
    """``[.., H, nope_dim + rope_dim]`` packed from two tensors of any strides."""
    output: Tensor = call("fused_mla_rope_concat", BLOCK_H, (nope, rope, cos, sin), options)
    return output
