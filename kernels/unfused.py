"""What the dispatcher runs where the fused kernels do not apply: the same contract in PyTorch.

It lives here, not in ``reference/``, because shipped code must not lean on the oracle that judges
it: a mistake would then be on both sides.  Wherever both paths apply they give the same bits.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def rotate_unfused(
    t: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    rotary_interleaved: bool,
    mla_rotary_interleaved: bool,
    inverse: bool,
    remove_interleaving: bool,
) -> Tensor:
    """Rotate the leading ``R`` lanes of ``t`` ``[..., D]``; the others keep their bits.

    Two lanes turn together: ``(i, i + R/2)``, or ``(2i, 2i+1)`` if ``rotary_interleaved``.  Before,
    ``mla_rotary_interleaved`` moves even lanes into the left half and odd ones into the right;
    ``remove_interleaving`` moves them back afterwards.  fp32 (fp64 for fp64 data), rounded once.

    Args:
        cos, sin: ``[..., R]``, broadcastable to ``t``; the lanes of a pair may differ.
    """
    width = cos.shape[-1]
    rope, rest = t.split([width, t.shape[-1] - width], dim=-1)
    wide = torch.promote_types(t.dtype, torch.float32)
    x, cos, sin = rope.to(wide), cos.to(wide), sin.to(wide)
    if mla_rotary_interleaved:
        x = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
    first, second = _members(x, rotary_interleaved)
    cos_first, cos_second = _members(cos, rotary_interleaved)
    sin_first, sin_second = _members(sin, rotary_interleaved)
    if inverse:  # not a negated sine: the bits are the same, and no zero changes its sign
        left = first * cos_first + second * sin_first
        right = second * cos_second - first * sin_second
    else:
        left = first * cos_first - second * sin_first
        right = second * cos_second + first * sin_second
    if rotary_interleaved:
        y = torch.stack([left, right], dim=-1).flatten(-2)
    else:
        y = torch.cat([left, right], dim=-1)
    if remove_interleaving:
        y = torch.stack(y.chunk(2, dim=-1), dim=-1).flatten(-2)
    return torch.cat([y.to(t.dtype), rest], dim=-1)


def _members(x: Tensor, pairs: bool) -> tuple[Tensor, Tensor]:
    """First and second member of every pair of lanes, each ``[..., R/2]``."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if pairs else x.chunk(2, dim=-1)
    return first, second


def pack_positions(
    tokens: int, cu_seqlens: Tensor, cp_rank: int, cp_size: int, whole_pack_table: bool
) -> Tensor:
    """The table row of each of this rank's ``tokens``, int64 ``[T]``; no value is read on the host.

    ``cu_seqlens`` ``[N + 1]`` counts over all ranks, of which each holds two zigzag chunks of every
    sequence.  Rows of no sequence use row 0.
    """
    bounds = cu_seqlens.to(torch.int64)
    token = torch.arange(tokens, dtype=torch.int64, device=bounds.device)
    sequence = torch.searchsorted(bounds // cp_size, token, right=True) - 1
    bounds = pad(bounds, (0, 1))  # rows past the end find a sequence of no rows or fewer
    start, end = bounds[sequence], bounds[sequence + 1]
    local = token - start // cp_size
    length = (end - start) // cp_size
    early = (length + 1) // 2  # rounded up, so that without context parallelism no row is lost
    position = torch.where(
        local < early,
        cp_rank * early + local,
        (end - start) - (cp_rank + 1) * (length - early) + (local - early),
    )
    if whole_pack_table:
        position += start
    return torch.where(local < length, position, 0)


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Rows of a table ``[P, ...]``; NaN for those outside it, as the kernels give."""
    length = len(table)
    outside = (rows < 0) | (rows >= length)
    extended = pad(table.flatten(1), (0, 0, 0, 1), value=float("nan"))
    return extended[rows.masked_fill(outside, length)].unflatten(1, table.shape[1:])
