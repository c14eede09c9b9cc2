"""Pack the nope and rope parts of every head into one tensor, rotating the rope part."""

from itertools import chain
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .checks import check_data, check_positions, check_rotation, check_tables
from .launch import Launch, Shapes, not_compiled, once_differentiable, once_per_layout
from .positions import Lookup, Positions, in_use, row_offset, strides, table_row, tile_rows
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
def concat_kernel(
    nope, rope, output, cos, sin,
    cu_seqlens, cu_seqlens_padded, position_ids,
    rows, length, sequences, steps, cp_rank,
    batch, cp_size, heads, nope_dim,
    nope_stride_s, nope_stride_b, nope_stride_h, nope_stride_d,
    rope_stride_s, rope_stride_b, rope_stride_h, rope_stride_d,
    cos_stride, sin_stride, WHOLE_PACK: tl.constexpr,
    R: tl.constexpr, HALF: tl.constexpr, NOPE: tl.constexpr, ROWS: tl.constexpr,
    INVERSE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """[nope | rotated rope] of each row; nope and rope have any strides, output is contiguous.

    All data is asked for before the search for the position, which then costs no time of its own.
    """
    token, head, live = tile_rows(rows, heads, ROWS)
    if NOPE > 0:
        nope += row_offset(token, head, batch, nope_stride_s, nope_stride_b, nope_stride_h)
        kept = load_lanes(nope, 0, nope_stride_d, live, nope_dim, NOPE)
    rope += row_offset(token, head, batch, rope_stride_s, rope_stride_b, rope_stride_h)
    pairs = load_rope(rope, 0, rope_stride_d, live, R, HALF, False)
    row = table_row(
        token, live, cu_seqlens, cu_seqlens_padded, position_ids,
        sequences, steps, cp_rank, batch, cp_size, WHOLE_PACK,
    )  # fmt: skip
    cos_left, cos_right = load_table(cos, cos_stride, length, row, live, R, HALF)
    sin_left, sin_right = load_table(sin, sin_stride, length, row, live, R, HALF)

    output += (token.to(tl.int64) * heads + head) * (nope_dim + R)
    first, second = split_pairs(pairs, HALF, False)
    left, right = rotate(first, second, cos_left, cos_right, sin_left, sin_right, INVERSE, False)
    store_pairs(output, nope_dim, left, right, live, R, HALF, not INTERLEAVED)
    if NOPE > 0:
        store_lanes(output, 0, kept, live, nope_dim, NOPE)


@triton.jit(do_not_specialize=["rows", "length", "sequences", "steps", "cp_rank"])
def concat_backward_kernel(
    grad, grad_nope, grad_rope, cos, sin,
    cu_seqlens, cu_seqlens_padded, position_ids,
    rows, length, sequences, steps, cp_rank,
    batch, cp_size, heads, nope_dim,
    grad_stride_s, grad_stride_b, grad_stride_h, grad_stride_d,
    cos_stride, sin_stride, WHOLE_PACK: tl.constexpr,
    R: tl.constexpr, HALF: tl.constexpr, NOPE: tl.constexpr, ROWS: tl.constexpr,
    INVERSE: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Split a gradient of any strides into contiguous ones of nope and rope, either may be None."""
    token, head, live = tile_rows(rows, heads, ROWS)
    grad += row_offset(token, head, batch, grad_stride_s, grad_stride_b, grad_stride_h)
    if NOPE > 0:
        kept = load_lanes(grad, 0, grad_stride_d, live, nope_dim, NOPE)
    if grad_rope is not None:
        pairs = load_rope(grad, nope_dim, grad_stride_d, live, R, HALF, not INTERLEAVED)
        row = table_row(
            token, live, cu_seqlens, cu_seqlens_padded, position_ids,
            sequences, steps, cp_rank, batch, cp_size, WHOLE_PACK,
        )  # fmt: skip
        cos_left, cos_right = load_table(cos, cos_stride, length, row, live, R, HALF)
        sin_left, sin_right = load_table(sin, sin_stride, length, row, live, R, HALF)
        left, right = split_pairs(pairs, HALF, not INTERLEAVED)
        first, second = rotate(left, right, cos_left, cos_right, sin_left, sin_right, INVERSE, True)
        out_row = token.to(tl.int64) * heads + head
        store_pairs(grad_rope + out_row * R, 0, first, second, live, R, HALF, False)
    if NOPE > 0:
        out_row = token.to(tl.int64) * heads + head
        store_lanes(grad_nope + out_row * nope_dim, 0, kept, live, nope_dim, NOPE)


class Rotation(NamedTuple):
    """The flags of one call, the same in forward and backward."""

    nope_dim: int
    emb_dim: int
    inverse: bool
    remove_interleaving: bool
    tile: int | None
    cp_rank: int
    cp_size: int
    whole_pack_table: bool


class _Concat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nope: Tensor, rope: Tensor, lookup: Lookup, flags: Rotation) -> Tensor:
        launch = _forward((nope, rope, *lookup), flags)
        (output,), lookup = launch.outputs(rope), in_use(lookup)
        launch(nope, rope, output, *lookup)
        ctx.save_for_backward(*lookup)
        ctx.flags = flags
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        lookup = ctx.saved_tensors
        launch = _backward((grad, *lookup), ctx.flags, ctx.needs_input_grad[:2])
        parts = launch.outputs(grad)
        launch(grad, *parts, *lookup)
        return *parts, None, None


@once_per_layout
def _forward(tensors: tuple[Any, ...], flags: Rotation) -> Launch:
    """Check the arguments of a call; its launch."""
    nope, rope, cos, sin, *packing = tensors
    check_data("rope", rope)
    check_data("nope", nope, rope)
    if nope.shape[:-1] != rope.shape[:-1]:
        raise ValueError(
            f"Expected nope and rope with equal leading sizes but got {tuple(nope.shape)} and "
            f"{tuple(rope.shape)}."
        )
    check_rotation(flags.emb_dim, flags.emb_dim)
    check_tables(cos, sin, rope, flags.emb_dim)
    positions = check_positions(
        rope, cos.shape[0], *packing, flags.cp_rank, flags.cp_size, flags.whole_pack_table
    )
    shapes = [(*rope.shape[:-1], flags.nope_dim + flags.emb_dim)]
    return _launch(concat_kernel, shapes, (cos, sin), (nope, rope), positions, flags)


@once_per_layout
def _backward(tensors: tuple[Any, ...], flags: Rotation, needed: tuple[bool, bool]) -> Launch:
    """The launch that gives those of the two gradients that are needed."""
    grad, cos, sin, *packing = tensors
    positions = check_positions(
        grad, cos.shape[0], *packing, flags.cp_rank, flags.cp_size, flags.whole_pack_table
    )
    shapes = [
        (*grad.shape[:-1], lanes) if asked else None
        for lanes, asked in zip(flags[:2], needed, strict=True)
    ]
    return _launch(
        concat_backward_kernel, shapes, (cos, sin), (grad,), positions, flags, not needed[0]
    )


def _launch(
    kernel: Any,
    shapes: Shapes,
    tables: tuple[Tensor, Tensor],
    strided: tuple[Tensor, ...],
    positions: Positions,
    flags: Rotation,
    skip_nope: bool = False,
) -> Launch:
    """One launch, without programs if there are no rows; ``strided`` tensors pass their strides."""
    first, (cos, sin) = strided[-1], tables
    heads = first.shape[-2]
    rows = first.numel() // first.shape[-1]
    half, nope = tiles.padded(flags.emb_dim // 2), 0 if skip_nope else tiles.padded(flags.nope_dim)
    tile = tiles.choose_tile(flags.tile, 2 * half + nope)
    warps = tiles.choose_warps(tile * (2 * half + nope))
    return Launch(
        kernel, first.get_device(), -(-rows // tile),
        (rows, cos.shape[0], *positions.counts),
        (
            *positions.fixed, heads, flags.nope_dim,
            *chain.from_iterable(map(strides, strided)), cos.stride(0), sin.stride(0),
        ),
        {
            "WHOLE_PACK": positions.whole_pack_table,
            "R": flags.emb_dim, "HALF": half, "NOPE": nope, "ROWS": tile,
            "INVERSE": flags.inverse, "INTERLEAVED": flags.remove_interleaving,
        },
        warps, shapes,
    )  # fmt: skip


@not_compiled
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
    tile: int | None = None,
) -> Tensor:
    """``[nope | rotated rope]`` for every head in one launch, and one for both gradients.

    The rope lanes are read as pairs ``(2i, 2i+1)`` and stored in halves ``[left | right]``, or as
    pairs if ``remove_interleaving``; the nope lanes keep their bits.  With x1 and x2 the even and
    odd lanes, ``left = x1 cos_left - x2 sin_left`` and ``right = x2 cos_right + x1 sin_right`` in
    fp32, rounded once (RoFormer, arXiv 2104.09864, with halves that may differ).

    Args:
        nope: ``[S, B, H, N]`` (SBHD) or ``[T, H, N]`` (THD) in float32, bfloat16 or float16, any
            strides; N may be 0.
        rope: ``[S, B, H, R]`` or ``[T, H, R]`` in the same dtype, any strides; R even.
        cos, sin: ``[P, R]`` or ``[P, 1, 1, R]`` in float32 or the dtype of ``rope``, last stride 1;
            never given a gradient.
        cu_seqlens: ``[sequences + 1]`` int32 or int64, THD only, counted over all ranks.
        cp_rank, cp_size: THD only: which zigzag chunks of each sequence the tensors hold.
        inverse: negate the sine.
        position_ids: ``[T]`` int32 or int64, THD only: the table row of each token.
        cu_seqlens_padded: where the rows of each sequence start, if that differs.
        whole_pack_table: the tables run over the pack, so that a sequence begins at its own row.
        tile: how many (token, head) rows a program handles, one of ``TILES``; None chooses.

    Returns:
        ``[S, B, H, N + R]`` or ``[T, H, N + R]``, contiguous.  Rows of no sequence are rotated as
        if at position 0.

    Raises:
        ValueError: arguments that do not fit each other; values on the device are read only inside
            :func:`.validation.validation`, and a position outside the tables gives NaN.
    """
    flags = Rotation(
        nope.shape[-1], rope.shape[-1], inverse, remove_interleaving, tile,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip
    lookup = (cos, sin, cu_seqlens, cu_seqlens_padded, position_ids)
    return _Concat.apply(nope, rope, lookup, flags)  # type: ignore[no-any-return]
