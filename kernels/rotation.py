"""Parts of the kernels that move and rotate the lanes of a tile of rows.

All take a tile of ``ROWS`` pointers, one a row, and the lane of the row at which to begin;
``live`` masks rows past the end.  ``R`` is the number of rotated lanes, ``HALF`` the power of two
that holds ``R // 2``.  Lanes are int64: with a stride they may pass 2**31.
"""

import triton
import triton.language as tl


@triton.jit
def load_lanes(src, at, stride, live, lanes, BLOCK: tl.constexpr):
    """``lanes`` lanes of each row as they are, [ROWS, BLOCK]."""
    lane = tl.arange(0, BLOCK).to(tl.int64)[None, :]
    return tl.load(src[:, None] + (at + lane) * stride, mask=live[:, None] & (lane < lanes))


@triton.jit
def store_lanes(dst, at, x, live, lanes, BLOCK: tl.constexpr):
    """Store ``lanes`` lanes of each row, which lie side by side, bit for bit."""
    lane = tl.arange(0, BLOCK).to(tl.int64)[None, :]
    tl.store(dst[:, None] + (at + lane), x, mask=live[:, None] & (lane < lanes))


@triton.jit
def copy_lanes(src, src_at, src_stride, dst, dst_at, live, lanes, BLOCK: tl.constexpr):
    """Copy ``lanes`` lanes of each row, bit for bit; the lanes of ``dst`` lie side by side."""
    x = load_lanes(src, src_at, src_stride, live, lanes, BLOCK)
    store_lanes(dst, dst_at, x, live, lanes, BLOCK)


@triton.jit
def rope_lanes(R: tl.constexpr, HALF: tl.constexpr, SPLIT: tl.constexpr):
    """The lane in memory of each of the ``2 * HALF`` columns of a tile, and whether it exists.

    Columns are pairs ``(2i, 2i+1)``, or two halves if ``SPLIT``.  If R is a power of two they are
    the lanes themselves in both, so that every load and store of a row covers one contiguous tile.
    """
    column = tl.arange(0, 2 * HALF)
    if SPLIT and R != 2 * HALF:
        lane = column // HALF * (R // 2) + column % HALF
        exists = column % HALF < R // 2
    else:
        lane = column
        exists = column < R
    return lane.to(tl.int64)[None, :], exists[None, :]


@triton.jit
def load_rope(src, at, stride, live, R: tl.constexpr, HALF: tl.constexpr, SPLIT: tl.constexpr):
    """The lanes of every pair as they lie in memory, [ROWS, 2 * HALF]."""
    lane, exists = rope_lanes(R, HALF, SPLIT)
    return tl.load(src[:, None] + (at + lane) * stride, mask=live[:, None] & exists, other=0.0)


@triton.jit
def split_pairs(x, HALF: tl.constexpr, SPLIT: tl.constexpr):
    """Both members of every pair in fp32, each [ROWS, HALF]; pairs are split in registers.

    Apart from loading, since this is the first use of the data: whatever is to be done while they
    are on their way stands between the two.
    """
    if SPLIT:
        pairs = tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1))
    else:
        pairs = tl.reshape(x, (x.shape[0], HALF, 2))
    first, second = tl.split(pairs)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def store_pairs(
    dst, at, first, second, live, R: tl.constexpr, HALF: tl.constexpr, SPLIT: tl.constexpr
):
    """Round both members of every pair once and store them side by side or in halves."""
    dtype = dst.dtype.element_ty
    pairs = tl.join(first.to(dtype), second.to(dtype))
    if SPLIT:
        pairs = tl.permute(pairs, (0, 2, 1))
    lane, exists = rope_lanes(R, HALF, SPLIT)
    x = tl.reshape(pairs, (first.shape[0], 2 * HALF))
    tl.store(dst[:, None] + (at + lane), x, mask=live[:, None] & exists)


@triton.jit
def load_table(table, stride, length, row, live, R: tl.constexpr, HALF: tl.constexpr):
    """The left and right half of each row's table row in fp32, each [ROWS, HALF].

    A position outside the table gives NaN: wrong input must show, and must not be read.
    """
    lane = tl.arange(0, HALF)[None, :]
    exists = live & (row >= 0) & (row < length)
    mask = exists[:, None] & (lane < R // 2)
    start = table + (row * stride)[:, None] + lane
    left = tl.load(start, mask=mask, other=float("nan"))
    right = tl.load(start + R // 2, mask=mask, other=float("nan"))
    return left.to(tl.float32), right.to(tl.float32)


@triton.jit
def rotate(
    first, second, cos_left, cos_right, sin_left, sin_right,
    INVERSE: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """Rotate pairs; ``INVERSE`` negates the sine, ``TRANSPOSE`` (the backward) exchanges it.

    Subtraction instead of negation: the bits are the same and no zero changes its sign.
    """
    if TRANSPOSE:
        sin_left, sin_right = sin_right, sin_left
    if INVERSE != TRANSPOSE:
        left = first * cos_left + second * sin_left
        right = second * cos_right - first * sin_right
    else:
        left = first * cos_left - second * sin_left
        right = second * cos_right + first * sin_right
    return left, right
