"""The rotation of RoPE, in plain PyTorch.

With ``x1`` the even and ``x2`` the odd lanes of the input, as in DeepSeek-V2 (arXiv 2405.04434) and
RoFormer (arXiv 2104.09864), but with tables whose two halves may differ::

    left  = x1 * cos_left  - x2 * sin_left
    right = x2 * cos_right + x1 * sin_right
"""

import torch
from torch import Tensor


def check_rotation(emb_dim: int, width: int, rotary_interleaved: bool = False, *kept: int) -> None:
    """Refuse what the op cannot do; ``width`` is how many lanes ``emb_dim`` must be.

    ``kept`` are the numbers of lanes that are copied.

    Raises:
        ValueError: interleaved tables, an odd ``emb_dim``, or lanes that do not match.
    """
    if rotary_interleaved:
        raise ValueError(
            "Expected rotary_interleaved=False but got True; use the unfused path for tables that "
            "repeat each angle per pair."
        )
    if emb_dim < 2 or emb_dim % 2:
        raise ValueError(f"Expected an even emb_dim of at least 2 but got emb_dim={emb_dim}.")
    if any(lanes < 0 for lanes in kept):
        raise ValueError(f"Expected no negative number of kept lanes but got {kept}.")
    if width != emb_dim:
        raise ValueError(f"Expected emb_dim={emb_dim} rotated lanes but the tensor has {width}.")


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    inverse: bool = False,
    remove_interleaving: bool = False,
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
) -> Tensor:
    """Rotate the pairs ``(2i, 2i+1)`` of ``x``; every operation in ``compute_dtype``, unrounded.

    Args:
        x: ``[..., R]``.
        cos, sin: a table row for each row of ``x``, broadcastable to ``[..., R]``.
        inverse: negate the sine.
        remove_interleaving: store ``left, right`` at lanes ``(2i, 2i+1)`` instead of in halves.
        magnitude: add where the formula subtracts; with absolute inputs, the sum of the absolute
            terms of each lane.

    Returns:
        ``[..., R]`` in ``compute_dtype``.
    """
    pairs = x.to(compute_dtype).unflatten(-1, (x.shape[-1] // 2, 2))
    x1, x2 = pairs.unbind(-1)
    cos_left, cos_right = cos.to(compute_dtype).chunk(2, dim=-1)
    sin_left, sin_right = sin.to(compute_dtype).chunk(2, dim=-1)
    if magnitude:
        left = x1 * cos_left + x2 * sin_left
        right = x2 * cos_right + x1 * sin_right
    elif inverse:
        left = x1 * cos_left + x2 * sin_left
        right = x2 * cos_right - x1 * sin_right
    else:
        left = x1 * cos_left - x2 * sin_left
        right = x2 * cos_right + x1 * sin_right
    if remove_interleaving:
        return torch.stack([left, right], dim=-1).flatten(-2)
    return torch.cat([left, right], dim=-1)
