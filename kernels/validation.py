"""The explicit switch for what only values on the device can tell; each call then waits for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from .positions import Positions

_validating = ContextVar("_validating", default=False)


@contextmanager
def validation() -> Iterator[None]:
    """Within it every op also checks the values of its packing and refuses bad ones.

    Each call then copies ``cu_seqlens``, ``cu_seqlens_padded`` or ``position_ids`` to the host,
    which waits for the device and cannot be captured in a CUDA graph: for tests and debugging.
    It holds for this thread or task; a backward uses the values that its forward was given.
    """
    before = _validating.set(True)
    try:
        yield
    finally:
        _validating.reset(before)


def is_validating() -> bool:
    """Whether this thread or task is inside :func:`validation`."""
    return _validating.get()


def check_values(t: Tensor, positions: Positions, length: int) -> None:
    """Inside :func:`validation`, the rules of packing and that every position is in the tables.

    Args:
        t: ``[T, H, D]``, of which only the number of tokens counts.
        length: rows of the tables.

    Raises:
        ValueError: offsets that do not begin at 0, fall, are not divisible among the ranks, do not
            leave room or pass the end of ``t``; a position outside the tables.
    """
    if not is_validating():
        return
    tokens = t.shape[0]
    if positions.position_ids is not None:
        _check_inside(positions.position_ids.cpu(), length)
        return
    starts, places = _offsets(positions)
    size, rank = positions.cp_size, positions.cp_rank
    lengths = _steps("cu_seqlens", starts, 1 if size == 1 else 2 * size)
    room = _steps("cu_seqlens_padded", places, size)
    if bool((lengths > room).any()):
        raise ValueError(
            f"Expected room for every sequence but cu_seqlens {starts.tolist()} needs more rows "
            f"than cu_seqlens_padded {places.tolist()} gives."
        )
    if int(places[-1]) > tokens * size:
        raise ValueError(
            f"Expected at least {int(places[-1]) // size} tokens for this pack but got {tokens}."
        )
    first = starts[:-1] if positions.whole_pack_table else torch.zeros_like(lengths)
    unused = rank * (lengths // (2 * size))
    last = (first + lengths - unused - 1)[lengths > 0]
    row_of_padding = last.new_zeros(min(tokens, 1))  # on the host, whatever the default device
    _check_inside(torch.cat([last, row_of_padding]), length)


def _offsets(positions: Positions) -> tuple[Tensor, Tensor]:
    """``cu_seqlens`` and where its rows start, both int64 on the host."""
    starts, padded = (
        None if offsets is None else offsets.to("cpu", torch.int64) for offsets in positions[:2]
    )
    places = starts if padded is None else padded
    if int(starts[0]) != 0 or int(places[0]) != 0:
        raise ValueError(
            f"Expected cu_seqlens (and its padded twin) from 0 but got {starts.tolist()} and "
            f"{places.tolist()}."
        )
    return starts, places


def _steps(name: str, offsets: Tensor, unit: int) -> Tensor:
    steps = offsets.diff()
    if bool(((steps < 0) | (steps % unit != 0)).any()):
        raise ValueError(
            f"Expected {name} to rise in steps divisible by {unit} but got {offsets.tolist()}."
        )
    return steps


def _check_inside(rows: Tensor, length: int) -> None:
    if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < length):
        raise ValueError(
            f"Expected positions below the table's length {length} but got {int(rows.min())} to "
            f"{int(rows.max())}."
        )
