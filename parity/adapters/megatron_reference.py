"""The one reference whose parameter upstream names otherwise than ours."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def fused_apply_mla_rope_for_q(*, qk_head_dim: int, **arguments: Any) -> Tensor:
    """Rotated query as a new tensor, ``[S, B, H, D]`` or ``[T, H, D]``, in plain PyTorch."""
    reference = import_module("parity.reference.inplace")
    output: Tensor = reference.fused_mla_rope_inplace(nope_dim=qk_head_dim, **arguments)
    return output
