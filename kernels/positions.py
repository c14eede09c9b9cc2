"""Which rows a program works on, and which row of the cos/sin tables each of them uses."""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Size, Tensor

FANOUT = tl.constexpr(64)
# cos, sin, offsets, padded ones, position_ids: all that tells the rotation of a row
Lookup = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


class Positions(NamedTuple):
    """The arguments of :func:`table_row`, in its order.

    ``sequences`` is the number of packed sequences and ``steps`` how often its search must narrow
    them, both 0 where nothing is searched; ``batch`` the batch size of SBHD and 1 in THD.
    """

    cu_seqlens: Tensor | None
    cu_seqlens_padded: Tensor | None
    position_ids: Tensor | None
    sequences: int
    steps: int
    cp_rank: int
    batch: int
    cp_size: int
    whole_pack_table: bool

    @property
    def counts(self) -> tuple[int, int, int]:
        """What changes from call to call."""
        return self[3:6]

    @property
    def fixed(self) -> tuple[int, int]:
        """What a kernel is compiled for."""
        return self[6:8]


def in_use(lookup: Lookup) -> Lookup:
    """What the kernels are given once it was checked: positions need no offsets."""
    cos, sin, *_, position_ids = lookup
    return lookup if position_ids is None else (cos, sin, None, None, position_ids)


def strides(t: Tensor) -> tuple[int, int, int, int]:
    """Elements between positions, batch entries (0 in THD), heads and lanes of a tensor."""
    if t.dim() == 4:
        return t.stride()  # type: ignore[return-value]
    s, h, d = t.stride()
    return s, 0, h, d


def contiguous_strides(shape: Size) -> tuple[int, int, int]:
    """The first three of :func:`strides` of a contiguous tensor."""
    heads, lanes = shape[-2:]
    return shape[1:].numel(), heads * lanes if len(shape) == 4 else 0, lanes


@triton.jit
def tile_rows(rows, heads, ROWS: tl.constexpr):
    """Token and head of each (token, head) row of this program, and whether it exists."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    return row // heads, row % heads, row < rows


@triton.jit
def row_offset(token, head, batch, stride_s, stride_b, stride_h):
    """Elements from the start of a tensor to each row; int64, since they may pass 2**31."""
    seq = (token // batch).to(tl.int64)
    return seq * stride_s + (token % batch).to(tl.int64) * stride_b + head.to(tl.int64) * stride_h


@triton.jit
def table_row(
    token, live,
    cu_seqlens, cu_seqlens_padded, position_ids,
    sequences, steps, cp_rank, batch, cp_size, WHOLE_PACK: tl.constexpr,
):  # fmt: skip
    """The table row of each token, int64 [ROWS]; tokens of no sequence use row 0."""
    if position_ids is not None:
        row = tl.load(position_ids + token, mask=live, other=0).to(tl.int64)
    elif cu_seqlens is not None:
        row = pack_row(
            token, live, cu_seqlens, cu_seqlens_padded,
            sequences, steps, cp_rank, cp_size, WHOLE_PACK,
        )  # fmt: skip
    else:
        row = (token // batch).to(tl.int64)
    return row


@triton.jit
def pack_row(
    token, live, cu_seqlens, cu_seqlens_padded,
    sequences, steps, cp_rank, cp_size, WHOLE_PACK: tl.constexpr,
):  # fmt: skip
    """The table row of each token of a pack, of which this rank holds its zigzag chunks."""
    places = cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded
    sequence = enclosing(places, token, live, sequences, steps, cp_size)
    inside = live & (sequence >= 0) & (sequence < sequences)
    # The search has just seen these: loading them again costs less than picking them out there.
    start = tl.load(cu_seqlens + sequence, mask=inside, other=0)
    end = tl.load(cu_seqlens + sequence + 1, mask=inside, other=0)
    if cu_seqlens_padded is None:
        place = start
    else:
        place = tl.load(cu_seqlens_padded + sequence, mask=inside, other=0)

    local = token - place // cp_size
    length = (end - start) // cp_size
    early = (length + 1) // 2  # rounded up, so that without context parallelism no row is lost
    late = length - early
    position = tl.where(
        local < early,
        cp_rank * early + local,
        (end - start) - (cp_rank + 1) * late + (local - early),
    )
    if WHOLE_PACK:
        position += start
    return tl.where(inside & (local < length), position, 0).to(tl.int64)


@triton.jit
def enclosing(places, token, live, sequences, steps, cp_size):
    """Index of the last of the ``sequences + 1`` places at or before each token.

    It is -1 if there is none.  Of several equal places it is the last, which skips empty sequences;
    past the end of the pack it is ``sequences``.  Each step looks at ``FANOUT`` places at once and
    counts those before the token: a binary search waits for twelve loads, one after the other,
    where this waits for two.
    """
    LAST: tl.constexpr = 2**63 - 1 if places.dtype.element_ty == tl.int64 else 2**31 - 1
    limit = (token.to(tl.int64) + 1) * cp_size  # place // cp_size <= token, undivided
    limit = tl.minimum(limit, LAST).to(places.dtype.element_ty)[:, None]
    choice = tl.arange(1, FANOUT + 1)[None, :]
    found = tl.zeros_like(token) - 1
    stride = 1
    for _ in range(1, steps):
        stride *= FANOUT + 1
    for _ in range(steps):
        index = found[:, None] + choice * stride
        place = tl.load(places + index, mask=live[:, None] & (index <= sequences), other=LAST)
        found += stride * tl.sum((place < limit).to(tl.int32), axis=1)
        stride //= FANOUT + 1
    return found


def search_steps(sequences: int) -> int:
    """How many steps tell -1 and ``sequences + 1`` places apart; one has ``FANOUT + 1`` answers."""
    steps, reach = 1, FANOUT.value + 1
    while reach < sequences + 2:
        steps, reach = steps + 1, reach * (FANOUT.value + 1)
    return steps
