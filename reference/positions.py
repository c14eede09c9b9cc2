"""Which row of the cos/sin tables each row of a tensor uses, as a plain loop."""

from itertools import pairwise

import torch
from torch import Tensor


def look_up_tables(
    cos: Tensor,
    sin: Tensor,
    shape: torch.Size,
    emb_dim: int,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_padded: Tensor | None = None,
    position_ids: Tensor | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    whole_pack_table: bool = False,
) -> tuple[Tensor, Tensor]:
    """The table rows of a tensor of ``shape``, ready to broadcast against its rotated lanes.

    Args:
        cos, sin: ``[P, R]`` or ``[P, 1, 1, R]``.
        shape: ``[S, B, H, D]`` (SBHD) or ``[T, H, D]`` (THD).
        cu_seqlens: ``[N + 1]``, where each sequence starts in the whole pack of all ranks.
        cu_seqlens_padded: ``[N + 1]``, where its rows start, if that differs.
        position_ids: ``[T]``, the table row of each token; replaces everything else.
        whole_pack_table: the tables hold the pack from end to end, not one sequence.

    Returns:
        cos and sin, ``[S, 1, 1, R]`` or ``[T, 1, R]``.

    Raises:
        ValueError: malformed packing, or a position outside the tables.
    """
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"Expected 0 <= cp_rank < cp_size but got {cp_rank} of {cp_size}.")
    if len(shape) == 4:
        if not (cu_seqlens is None and cu_seqlens_padded is None and position_ids is None):
            raise ValueError(f"Expected no packing with an SBHD tensor of shape {tuple(shape)}.")
        if whole_pack_table:
            raise ValueError("Expected whole_pack_table=False with an SBHD tensor.")
        rows = list(range(shape[0]))
    elif len(shape) != 3:
        raise ValueError(f"Expected [S, B, H, D] or [T, H, D] but got shape {tuple(shape)}.")
    elif position_ids is not None:
        rows = _integers("position_ids", position_ids)
        if len(rows) != shape[0]:
            raise ValueError(f"Expected {shape[0]} position_ids but got {len(rows)}.")
    elif cu_seqlens is not None:
        starts = _integers("cu_seqlens", cu_seqlens)
        places = starts
        if cu_seqlens_padded is not None:
            places = _integers("cu_seqlens_padded", cu_seqlens_padded)
        rows = pack_rows(shape[0], starts, places, cp_rank, cp_size, whole_pack_table)
    else:
        raise ValueError("Expected cu_seqlens or position_ids with a THD tensor but got neither.")
    return _take(cos, rows, emb_dim, len(shape)), _take(sin, rows, emb_dim, len(shape))


def pack_rows(
    tokens: int, starts: list[int], places: list[int], cp_rank: int, cp_size: int, whole_pack: bool
) -> list[int]:
    """The table row of each of this rank's ``tokens``; rows of no sequence use row 0."""
    _check_pack(tokens, starts, places, cp_size)
    rows = [0] * tokens
    for (start, end), place in zip(pairwise(starts), places, strict=False):
        for row in range((end - start) // cp_size):
            position = zigzag(row, end - start, cp_rank, cp_size)
            rows[place // cp_size + row] = position + (start if whole_pack else 0)
    return rows


def zigzag(row: int, length: int, cp_rank: int, cp_size: int) -> int:
    """The position in its sequence of a rank's local ``row``.

    A sequence is cut into ``2 * cp_size`` chunks, and rank r holds chunk r followed by chunk
    ``2 * cp_size - 1 - r``, which balances causal attention (Megatron-Core's context parallelism).
    """
    if cp_size == 1:
        return row
    chunk = length // (2 * cp_size)
    if row < chunk:
        return cp_rank * chunk + row
    return length - (cp_rank + 1) * chunk + row - chunk


def _check_pack(tokens: int, starts: list[int], places: list[int], cp_size: int) -> None:
    if not starts or starts[0] != 0 or len(places) != len(starts) or places[0] != 0:
        raise ValueError(
            f"Expected cu_seqlens (and its padded twin, as long) from 0 but got {starts}, {places}."
        )
    _check_steps("cu_seqlens", starts, 1 if cp_size == 1 else 2 * cp_size)
    _check_steps("cu_seqlens_padded", places, cp_size)
    for (start, end), (place, limit) in zip(pairwise(starts), pairwise(places), strict=True):
        if end - start > limit - place:
            raise ValueError(
                f"Expected room for {end - start} rows but cu_seqlens_padded gives {limit - place}."
            )
    if places[-1] // cp_size > tokens:
        raise ValueError(
            f"Expected at least {places[-1] // cp_size} tokens for this pack but got {tokens}."
        )


def _check_steps(name: str, offsets: list[int], unit: int) -> None:
    lengths = [end - start for start, end in pairwise(offsets)]
    if any(length < 0 or length % unit for length in lengths):
        raise ValueError(f"Expected {name} to rise in steps divisible by {unit} but got {offsets}.")


def _integers(name: str, values: Tensor) -> list[int]:
    if values.dim() != 1 or values.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"Expected {name} as one row of int32 or int64 but got {values.dtype} of shape "
            f"{tuple(values.shape)}."
        )
    return [int(value) for value in values.tolist()]


def _take(table: Tensor, rows: list[int], emb_dim: int, dims: int) -> Tensor:
    length, width = table.shape[0], table.shape[-1]
    if table.shape not in ((length, width), (length, 1, 1, width)) or width != emb_dim:
        raise ValueError(
            f"Expected cos and sin of shape [P, {emb_dim}] but got {tuple(table.shape)}; a table "
            "for rotary_percent below 1 is narrower and cannot be used here."
        )
    if rows and not (min(rows) >= 0 and max(rows) < length):
        raise ValueError(
            f"Expected positions below the table's length {length} but got {min(rows)} to "
            f"{max(rows)}."
        )
    index = torch.tensor(rows, dtype=torch.int64, device=table.device)
    taken = table.detach().reshape(length, width)[index]
    return taken.view(len(rows), *[1] * (dims - 2), width)
