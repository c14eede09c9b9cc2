"""Rotate the leading or trailing lanes of every head of a tensor.

In place is the same kernel with one tensor as source and destination and nothing to copy.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .checks import (
    check_data,
    check_last_stride,
    check_no_overlap,
    check_positions,
    check_rotation,
    check_tables,
)
from .launch import Launch, not_compiled, once_differentiable, once_per_layout
from .positions import (
    Lookup,
    Positions,
    contiguous_strides,
    in_use,
    row_offset,
    strides,
    table_row,
    tile_rows,
)
from .rotation import (
    load_lanes,
    load_rope,
    load_table,
    rotate,
    split_pairs,
    store_lanes,
    store_pairs,
)

TILES = tiles.TILES


@triton.jit(do_not_specialize=["rows", "length", "sequences", "steps", "cp_rank"])
def rotate_kernel(
    src, dst, cos, sin,
    cu_seqlens, cu_seqlens_padded, position_ids,
    rows, length, sequences, steps, cp_rank,
    batch, cp_size, heads, nope_dim,
    src_stride_s, src_stride_b, src_stride_h, src_stride_d,
    dst_stride_s, dst_stride_b, dst_stride_h,
    cos_stride, sin_stride, WHOLE_PACK: tl.constexpr,
    R: tl.constexpr, HALF: tl.constexpr, NOPE: tl.constexpr, ROWS: tl.constexpr,
    INVERSE: tl.constexpr, TRANSPOSE: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROPE_FIRST: tl.constexpr,
):  # fmt: skip
    """Rotate ``R`` lanes of each row from src to dst and copy ``nope_dim`` lanes, if NOPE > 0.

    src and dst are [S, B, H, D] or [T, H, D] (batch 1); src may have any strides, dst has lanes
    side by side.  Forward reads pairs and writes pairs (INTERLEAVED) or halves; TRANSPOSE reads
    what forward writes and writes pairs.  All data is asked for before the search for the position,
    which then costs no time of its own.
    """
    token, head, live = tile_rows(rows, heads, ROWS)
    src += row_offset(token, head, batch, src_stride_s, src_stride_b, src_stride_h)
    dst += row_offset(token, head, batch, dst_stride_s, dst_stride_b, dst_stride_h)
    if ROPE_FIRST:
        nope_at = R
        rope_at = 0
    else:
        nope_at = 0
        rope_at = nope_dim
    HALVES_IN: tl.constexpr = TRANSPOSE and not INTERLEAVED
    HALVES_OUT: tl.constexpr = not TRANSPOSE and not INTERLEAVED
    if NOPE > 0:
        kept = load_lanes(src, nope_at, src_stride_d, live, nope_dim, NOPE)
    pairs = load_rope(src, rope_at, src_stride_d, live, R, HALF, HALVES_IN)

    row = table_row(
        token, live, cu_seqlens, cu_seqlens_padded, position_ids,
        sequences, steps, cp_rank, batch, cp_size, WHOLE_PACK,
    )  # fmt: skip
    cos_left, cos_right = load_table(cos, cos_stride, length, row, live, R, HALF)
    sin_left, sin_right = load_table(sin, sin_stride, length, row, live, R, HALF)

    first, second = split_pairs(pairs, HALF, HALVES_IN)
    first, second = rotate(
        first, second, cos_left, cos_right, sin_left, sin_right, INVERSE, TRANSPOSE
    )
    if HALVES_OUT and R != 2 * HALF:
        # The padded halves are another tile than the pairs that were loaded, so that in place one
        # warp could store a lane before another has loaded it.
        tl.debug_barrier()
    store_pairs(dst, rope_at, first, second, live, R, HALF, HALVES_OUT)
    if NOPE > 0:
        store_lanes(dst, nope_at, kept, live, nope_dim, NOPE)


class Rotation(NamedTuple):
    """The flags of one call, the same in forward and backward."""

    nope_dim: int
    emb_dim: int
    rotary_interleaved: bool
    inverse: bool
    remove_interleaving: bool
    rope_first: bool
    tile: int | None
    cp_rank: int
    cp_size: int
    whole_pack_table: bool


class _RotateOutOfPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, lookup: Lookup, flags: Rotation) -> Tensor:
        launch = forward_launch((t, *lookup), flags, False)
        (output,), lookup = launch.outputs(t), in_use(lookup)
        launch(t, output, *lookup)
        ctx.save_for_backward(*lookup)
        ctx.flags = flags
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gradient(ctx, grad), None, None


def gradient(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of ``t`` as a new contiguous tensor; ``grad`` may have any strides."""
    lookup = ctx.saved_tensors
    launch = _backward_launch((grad, *lookup), ctx.flags)
    (result,) = launch.outputs(grad)
    launch(grad, result, *lookup)
    return result  # type: ignore[no-any-return]


@once_per_layout
def forward_launch(tensors: tuple[Any, ...], flags: Rotation, in_place: bool) -> Launch:
    """Check the arguments of a call, in place or not; its launch."""
    t, cos, sin, *packing = tensors
    check_data("t", t)
    check_last_stride("t", t)
    width = t.shape[-1] - flags.nope_dim
    check_rotation(flags.emb_dim, width, flags.rotary_interleaved, flags.nope_dim)
    check_tables(cos, sin, t, flags.emb_dim)
    if in_place:
        check_no_overlap("t", t)
    positions = check_positions(
        t, cos.shape[0], *packing, flags.cp_rank, flags.cp_size, flags.whole_pack_table
    )
    return _launch(t, cos, sin, positions, flags, in_place=in_place, transpose=False)


@once_per_layout
def _backward_launch(tensors: tuple[Any, ...], flags: Rotation) -> Launch:
    grad, cos, sin, *packing = tensors
    positions = check_positions(
        grad, cos.shape[0], *packing, flags.cp_rank, flags.cp_size, flags.whole_pack_table
    )
    return _launch(grad, cos, sin, positions, flags, in_place=False, transpose=True)


def _launch(
    src: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Positions,
    flags: Rotation,
    *,
    in_place: bool,
    transpose: bool,
) -> Launch:
    """One launch, without programs if there are no rows, into ``src`` or a contiguous tensor."""
    heads, width = src.shape[-2:]
    rows = src.numel() // width
    half, nope = tiles.padded(flags.emb_dim // 2), 0 if in_place else tiles.padded(flags.nope_dim)
    tile = tiles.choose_tile(flags.tile, 2 * half + nope)
    warps = tiles.choose_warps(tile * (2 * half + nope))
    dst_strides = strides(src)[:3] if in_place else contiguous_strides(src.shape)
    return Launch(
        rotate_kernel, src.get_device(), -(-rows // tile),
        (rows, cos.shape[0], *positions.counts),
        (
            *positions.fixed, heads, flags.nope_dim,
            *strides(src), *dst_strides, cos.stride(0), sin.stride(0),
        ),
        {
            "WHOLE_PACK": positions.whole_pack_table,
            "R": flags.emb_dim, "HALF": half, "NOPE": nope, "ROWS": tile,
            "INVERSE": flags.inverse, "TRANSPOSE": transpose,
            "INTERLEAVED": flags.remove_interleaving, "ROPE_FIRST": flags.rope_first,
        },
        warps, [] if in_place else [src.shape],
    )  # fmt: skip


@not_compiled
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
    tile: int | None = None,
) -> Tensor:
    """Rotate the last ``emb_dim`` lanes of ``t`` (the first ones if ``rope_first``).

    The rotated lanes are read as pairs ``(2i, 2i+1)`` and stored in halves ``[left | right]``, or
    as pairs if ``remove_interleaving``; the other ``nope_dim`` lanes keep their bits.  With x1 and
    x2 the even and odd lanes, ``left = x1 cos_left - x2 sin_left`` and ``right = x2 cos_right +
    x1 sin_right`` in fp32, rounded once (RoFormer, arXiv 2104.09864, with halves that may differ).

    Args:
        t: ``[S, B, H, nope_dim + emb_dim]`` (SBHD) or ``[T, H, nope_dim + emb_dim]`` (THD) in
            float32, bfloat16 or float16, any strides with a last one of 1.
        cos, sin: ``[P, emb_dim]`` or ``[P, 1, 1, emb_dim]`` in float32 or the dtype of ``t``, last
            stride 1; never given a gradient.
        cu_seqlens_q: ``[N + 1]`` int32 or int64, THD only, counted over all ranks.
        cp_rank, cp_size: THD only: which zigzag chunks of each sequence ``t`` holds.
        rotary_interleaved: must be False.
        inverse: negate the sine.
        position_ids: ``[T]`` int32 or int64, THD only: the table row of each token.
        cu_seqlens_padded: ``[N + 1]``, where the rows of each sequence start, if that differs.
        whole_pack_table: the tables run over the pack, so that a sequence begins at its own row.
        tile: how many (token, head) rows a program handles, one of ``TILES``; None chooses.

    Returns:
        A new contiguous tensor.  Rows of no sequence are rotated as if at position 0.

    Raises:
        ValueError: arguments that do not fit each other; values on the device are read only inside
            :func:`.validation.validation`, and a position outside the tables gives NaN.
    """
    flags = Rotation(
        nope_dim, emb_dim, rotary_interleaved, inverse, remove_interleaving, rope_first, tile,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip
    lookup = (cos, sin, cu_seqlens_q, cu_seqlens_padded, position_ids)
    return _RotateOutOfPlace.apply(t, lookup, flags)  # type: ignore[no-any-return]
