"""Split a joint key/value projection; give every head's key the rotated shared key."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .checks import check_data, check_last_stride, check_positions, check_rotation, check_tables
from .launch import Launch, Shapes, not_compiled, once_differentiable, once_per_layout
from .positions import Lookup, Positions, row_offset, strides, table_row, tile_rows
from .rotation import (
    copy_lanes,
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
def kv_split_kernel(
    kv, shared, key, value, cos, sin,
    cu_seqlens, cu_seqlens_padded, position_ids,
    rows, length, sequences, steps, cp_rank,
    batch, cp_size, heads, k_dim, v_dim,
    kv_stride_s, kv_stride_b, kv_stride_h, kv_stride_d,
    shared_stride_s, shared_stride_b, shared_stride_h, shared_stride_d,
    cos_stride, sin_stride, WHOLE_PACK: tl.constexpr,
    R: tl.constexpr, HALF: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """key [k_dim + R] and value [v_dim] of each row, contiguous; K and V are 0 to skip a copy.

    kv is [S, B, H, k_dim + v_dim] or [T, H, ...]; shared, for all heads, [S, B, 1, R] or [T, 1, R].
    All data is asked for before the search for the position, which then costs no time of its own.
    """
    token, head, live = tile_rows(rows, heads, ROWS)
    kv += row_offset(token, head, batch, kv_stride_s, kv_stride_b, kv_stride_h)
    if K > 0:
        kept = load_lanes(kv, 0, kv_stride_d, live, k_dim, K)
    if V > 0:
        kept_value = load_lanes(kv, k_dim, kv_stride_d, live, v_dim, V)
    only = tl.zeros_like(head)
    shared += row_offset(token, only, batch, shared_stride_s, shared_stride_b, shared_stride_h)
    pairs = load_rope(shared, 0, shared_stride_d, live, R, HALF, False)
    row = table_row(
        token, live, cu_seqlens, cu_seqlens_padded, position_ids,
        sequences, steps, cp_rank, batch, cp_size, WHOLE_PACK,
    )  # fmt: skip
    cos_left, cos_right = load_table(cos, cos_stride, length, row, live, R, HALF)
    sin_left, sin_right = load_table(sin, sin_stride, length, row, live, R, HALF)

    out_row = token.to(tl.int64) * heads + head
    key += out_row * (k_dim + R)
    first, second = split_pairs(pairs, HALF, False)
    left, right = rotate(first, second, cos_left, cos_right, sin_left, sin_right, False, False)
    store_pairs(key, k_dim, left, right, live, R, HALF, not INTERLEAVED)
    if K > 0:
        store_lanes(key, 0, kept, live, k_dim, K)
    if V > 0:
        store_lanes(value + out_row * v_dim, 0, kept_value, live, v_dim, V)


@triton.jit(do_not_specialize=["rows", "length", "sequences", "steps", "cp_rank", "sums"])
def kv_split_backward_kernel(
    grad_key, grad_value, grad_kv, grad_shared, cos, sin,
    cu_seqlens, cu_seqlens_padded, position_ids,
    rows, length, sequences, steps, cp_rank, sums,
    batch, cp_size, heads, k_dim, v_dim,
    key_stride_s, key_stride_b, key_stride_h, key_stride_d,
    value_stride_s, value_stride_b, value_stride_h, value_stride_d,
    cos_stride, sin_stride, WHOLE_PACK: tl.constexpr,
    R: tl.constexpr, HALF: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The first ``sums`` programs sum and rotate the shared key's gradient of ``ROWS`` tokens each;
    every other one copies ``ROWS`` rows.  Sums take longest, so that none may begin last.

    Incoming gradients have any strides; grad_kv and grad_shared are contiguous, either may be None.
    """
    program = tl.program_id(0)
    if program < sums:
        if grad_shared is not None:  # what is not asked for must not even be compiled
            token = program * ROWS + tl.arange(0, ROWS)
            live = token < rows // heads
            row = table_row(
                token, live, cu_seqlens, cu_seqlens_padded, position_ids,
                sequences, steps, cp_rank, batch, cp_size, WHOLE_PACK,
            )  # fmt: skip
            cos_left, cos_right = load_table(cos, cos_stride, length, row, live, R, HALF)
            sin_left, sin_right = load_table(sin, sin_stride, length, row, live, R, HALF)
            only = tl.zeros_like(token)
            key = grad_key + row_offset(
                token, only, batch, key_stride_s, key_stride_b, key_stride_h
            )
            # Ascending heads, beginning with the first: the order is part of the contract.
            pairs = load_rope(key, k_dim, key_stride_d, live, R, HALF, not INTERLEAVED)
            left, right = split_pairs(pairs, HALF, not INTERLEAVED)
            for _ in tl.range(1, heads, num_stages=4):  # loads run ahead of the sum
                key += key_stride_h
                pairs = load_rope(key, k_dim, key_stride_d, live, R, HALF, not INTERLEAVED)
                more = split_pairs(pairs, HALF, not INTERLEAVED)
                left += more[0]
                right += more[1]
            first, second = rotate(
                left, right, cos_left, cos_right, sin_left, sin_right, False, True
            )
            out = grad_shared + token.to(tl.int64) * R
            store_pairs(out, 0, first, second, live, R, HALF, False)
    elif grad_kv is not None:
        out_row = (program - sums) * ROWS + tl.arange(0, ROWS)
        live = out_row < rows
        token = out_row // heads
        head = out_row % heads
        out_kv = grad_kv + out_row.to(tl.int64) * (k_dim + v_dim)
        if K > 0:
            src = grad_key + row_offset(
                token, head, batch, key_stride_s, key_stride_b, key_stride_h
            )
            copy_lanes(src, 0, key_stride_d, out_kv, 0, live, k_dim, K)
        if V > 0:
            value = grad_value + row_offset(
                token, head, batch, value_stride_s, value_stride_b, value_stride_h
            )
            copy_lanes(value, 0, value_stride_d, out_kv, k_dim, live, v_dim, V)


class Split(NamedTuple):
    """The flags of one call, the same in forward and backward."""

    emb_dim: int
    k_dim: int
    v_dim: int
    rotary_interleaved: bool
    remove_interleaving: bool
    tile: int | None
    cp_rank: int
    cp_size: int
    whole_pack_table: bool


class _KVSplit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kv: Tensor, k_pos_emb: Tensor, lookup: Lookup, flags: Split
    ) -> tuple[Tensor, Tensor]:
        launch = _forward((kv, k_pos_emb, *lookup), flags)
        key, value = launch.outputs(kv)
        launch(kv, k_pos_emb, key, value, *lookup)
        ctx.save_for_backward(*lookup)
        ctx.flags = flags
        return key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_key: Tensor, grad_value: Tensor) -> tuple[Tensor | None, ...]:
        lookup = ctx.saved_tensors
        tensors = (grad_key, grad_value, *lookup)
        launch = _backward(tensors, ctx.flags, ctx.needs_input_grad[:2])
        grads = launch.outputs(grad_key)
        launch(grad_key, grad_value, *grads, *lookup)
        return *grads, None, None


@once_per_layout
def _forward(tensors: tuple[Any, ...], flags: Split) -> Launch:
    """Check the arguments of a call; its launch."""
    kv, k_pos_emb, cos, sin, *packing = tensors
    emb_dim, k_dim, v_dim = flags[:3]
    check_data("kv", kv)
    check_data("k_pos_emb", k_pos_emb, kv)
    check_last_stride("kv", kv)
    check_last_stride("k_pos_emb", k_pos_emb)
    check_rotation(emb_dim, k_pos_emb.shape[-1], flags.rotary_interleaved, k_dim, v_dim)
    lead = kv.shape[:-1]
    shared = (*lead[:-1], 1)
    if lead[-1] == 0 or kv.shape[-1] != k_dim + v_dim or k_pos_emb.shape[:-1] != shared:
        raise ValueError(
            f"Expected kv [..., H > 0, {k_dim + v_dim}] and k_pos_emb [..., 1, {emb_dim}] but got "
            f"{tuple(kv.shape)} and {tuple(k_pos_emb.shape)}."
        )
    check_tables(cos, sin, kv, emb_dim)
    positions = check_positions(
        kv, cos.shape[0], *packing, flags.cp_rank, flags.cp_size, flags.whole_pack_table
    )
    shapes = [(*lead, k_dim + emb_dim), (*lead, v_dim)]
    return _launch(kv_split_kernel, shapes, (cos, sin), (kv, k_pos_emb), lead, positions, flags)


@once_per_layout
def _backward(tensors: tuple[Any, ...], flags: Split, needed: tuple[bool, bool]) -> Launch:
    """The launch that gives those of the two gradients that are needed."""
    grad_key, grad_value, cos, sin, *packing = tensors
    lead = grad_key.shape[:-1]
    positions = check_positions(
        grad_key, cos.shape[0], *packing, flags.cp_rank, flags.cp_size, flags.whole_pack_table
    )
    every = ((*lead, flags.k_dim + flags.v_dim), (*lead[:-1], 1, flags.emb_dim))
    shapes = [shape if asked else None for shape, asked in zip(every, needed, strict=True)]
    return _launch(
        kv_split_backward_kernel, shapes, (cos, sin), (grad_key, grad_value), lead, positions, flags
    )


def _launch(
    kernel: Any,
    shapes: Shapes,
    tables: tuple[Tensor, Tensor],
    strided: tuple[Tensor, Tensor],
    lead: torch.Size,
    positions: Positions,
    flags: Split,
) -> Launch:
    """One launch, without programs if there are no rows; ``strided`` tensors pass their strides."""
    rows, heads = lead.numel(), lead[-1]
    cos, sin = tables
    half, k, v = (tiles.padded(lanes) for lanes in (flags.emb_dim // 2, flags.k_dim, flags.v_dim))
    tile = tiles.choose_tile(flags.tile, 2 * half + k + v)
    warps = tiles.choose_warps(tile * (2 * half + k + v))
    programs = -(-rows // tile)
    sums: tuple[int, ...] = ()
    if kernel is kv_split_backward_kernel:
        grad_kv, grad_shared = shapes
        sums = (0 if grad_shared is None else -(-(rows // heads) // tile),)
        programs = sums[0] + (0 if grad_kv is None else programs)
    return Launch(
        kernel, strided[0].get_device(), programs,
        (rows, cos.shape[0], *positions.counts, *sums),
        (
            *positions.fixed, heads, flags.k_dim, flags.v_dim,
            *strides(strided[0]), *strides(strided[1]), cos.stride(0), sin.stride(0),
        ),
        {
            "WHOLE_PACK": positions.whole_pack_table,
            "R": flags.emb_dim, "HALF": half, "K": k, "V": v, "ROWS": tile,
            "INTERLEAVED": flags.remove_interleaving,
        },
        warps, shapes,
    )  # fmt: skip


@not_compiled
def fused_mla_rope_kv_split(
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
    remove_interleaving: bool = False,
    *,
    cu_seqlens_padded: Tensor | None = None,
    whole_pack_table: bool = False,
    tile: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Key ``[k | rotated k_pos_emb]`` and value of every head, in one launch and one backward.

    ``k_pos_emb`` is read as pairs ``(2i, 2i+1)`` and stored in halves ``[left | right]``, or as
    pairs if ``remove_interleaving``; the lanes of ``kv`` keep their bits.  With x1 and x2 the even
    and odd lanes, ``left = x1 cos_left - x2 sin_left`` and ``right = x2 cos_right + x1 sin_right``
    in fp32, rounded once (RoFormer, arXiv 2104.09864, with halves that may differ).  The gradient
    of ``k_pos_emb`` sums the heads in fp32 in ascending order, whatever the tile, rotates the sum
    and rounds once.

    Args:
        kv: ``[S, B, H, k_dim + v_dim]`` (SBHD) or ``[T, H, k_dim + v_dim]`` (THD) in float32,
            bfloat16 or float16, any strides with a last one of 1; either dim may be 0.
        k_pos_emb: ``[S, B, 1, emb_dim]`` or ``[T, 1, emb_dim]`` in the same dtype, last stride 1.
        cos, sin: ``[P, emb_dim]`` or ``[P, 1, 1, emb_dim]`` in float32 or the dtype of ``kv``, last
            stride 1; never given a gradient.
        cu_seqlens_kv: ``[N + 1]`` int32 or int64, THD only, counted over all ranks.
        cp_rank, cp_size: THD only: which zigzag chunks of each sequence the tensors hold.
        rotary_interleaved: must be False.
        cu_seqlens_padded: ``[N + 1]``, where the rows of each sequence start, if that differs.
        whole_pack_table: the tables run over the pack, so that a sequence begins at its own row.
        tile: how many (token, head) rows a program handles at a time, one of ``TILES``; None
            chooses.

    Returns:
        ``[..., H, k_dim + emb_dim]`` and ``[..., H, v_dim]``, both contiguous.  Rows of no sequence
        are rotated as if at position 0.

    Raises:
        ValueError: arguments that do not fit each other; values on the device are read only inside
            :func:`.validation.validation`, and a position outside the tables gives NaN.
    """
    flags = Split(
        emb_dim, k_dim, v_dim, rotary_interleaved, remove_interleaving, tile,
        cp_rank, cp_size, whole_pack_table,
    )  # fmt: skip
    lookup = (cos, sin, cu_seqlens_kv, cu_seqlens_padded, None)
    return _KVSplit.apply(kv, k_pos_emb, lookup, flags)  # type: ignore[no-any-return]
