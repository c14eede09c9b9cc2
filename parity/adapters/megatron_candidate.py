"""Megatron-Core's fused MLA RoPE functions, one callable each, with the tile as a parameter.

Parameters are named as upstream's; those with a default, which not every revision has, are given by
name.  The contracts in :mod:`.megatron` say the shapes.  Errors: ValueError where no usable
Megatron-Core is on the import path, Unsupported where this revision lacks the function, the
parameter or the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .megatron_module import call, fused_module


def modules() -> tuple[ModuleType, ...]:
    """The code under test, for the provenance of an arm: Megatron's module, not this one.

    Raises:
        ValueError: no import root holds a usable Megatron-Core.
    """
    return (fused_module(),)


def _function(name: str, *required: str) -> Callable[..., Any]:
    """Megatron's function ``name``; ``required`` are its parameters without a default, in order."""

    def candidate(*first: Any, BLOCK_H: int, **named: Any) -> Any:
        rest = [named.pop(parameter) for parameter in required[len(first) :]]
        return call(name, BLOCK_H, (*first, *rest), named)

    return candidate


KEY_VALUE = ("kv", "k_pos_emb", "cos", "sin", "emb_dim", "k_dim", "v_dim")
ROTATION = ("t", "cos", "sin", "nope_dim", "emb_dim")

fused_apply_mla_rope_for_q = _function(
    "fused_apply_mla_rope_for_q", "t", "cos", "sin", "qk_head_dim", "emb_dim"
)
fused_apply_mla_rope_for_kv = _function("fused_apply_mla_rope_for_kv", *KEY_VALUE)
fused_mla_rope_inplace = _function("fused_mla_rope_inplace", *ROTATION)
fused_mla_rope_out_of_place = _function("fused_mla_rope_out_of_place", *ROTATION)
fused_mla_rope_kv_split = _function("fused_mla_rope_kv_split", *KEY_VALUE)
fused_mla_rope_concat = _function("fused_mla_rope_concat", "nope", "rope", "cos", "sin")
