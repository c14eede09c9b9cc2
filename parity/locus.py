"""Where a mismatch sits: along lanes, heads and rows the first pattern that is exactly what is hit.

Words go into a signature, so there are no sizes in them; the same place is told in numbers for
people.  An element that is right by chance, such as a zero, hides nothing: a row is hit if any of
its elements is.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .case import Case
from .inputs import dims

Pattern = tuple[str, torch.Tensor]
SHOWN = 6  # ranges of one axis in a sentence


def words(where: torch.Tensor, rotated: torch.Tensor | None, case: Case, *, by_row: bool) -> str:
    """The pattern along each axis that the result has.

    ``where`` and ``rotated`` are bool of the result's shape, and ``rotated`` is None where the op
    rotates nothing.  ``by_row`` says whether that shape begins with the rows of the case.
    """
    hit = cube(where, case, by_row=by_row).cpu()
    lanes = hit.flatten(0, 1).any(0)
    if rotated is None:
        every = torch.ones_like(lanes)
        parts = [_first(lanes, _halves(every, "lanes"), "all lanes", "some lanes")]
    else:
        parts = [_lanes(lanes, cube(rotated, case, by_row=by_row).cpu().flatten(0, 1).any(0))]
    tile = dict(_row_tiles(hit, case)).get("rows of the partial tile") if by_row else None
    if tile is not None and torch.equal(hit.any(2), tile):
        return f"{parts[0]}, rows of the partial tile"
    heads = hit.any(2).any(0)
    if len(heads) > 1:
        parts.append(_first(heads, _heads(len(heads), case), "all heads", "some heads"))
    rows = hit.flatten(1).any(1)
    if by_row:
        parts.append(_first(rows, _rows(len(rows), case), "all rows", "some rows"))
    return ", ".join(parts)


def numbers(where: torch.Tensor, case: Case, *, by_row: bool) -> str:
    """The indices that are hit on each axis of more than one, as in ``heads 8..10 of 11``, with
    the tiles; nothing for a single element."""
    hit = cube(where, case, by_row=by_row).cpu()
    axes = {"tokens": hit.flatten(1).any(1), "heads": hit.any(2).any(0)}
    axes["lanes"] = hit.flatten(0, 1).any(0)
    told = [f"{name} {_ranges(mask)}" for name, mask in axes.items() if len(mask) > 1]
    tiles = [f"{name} {size}" for name, size in case.tile.items() if size]
    if told and tiles:
        told.append(f"tiles of {', '.join(tiles)}")
    return ", ".join(told)


def cube(tensor: torch.Tensor, case: Case, *, by_row: bool) -> torch.Tensor:
    """[tokens, heads, lanes] of a result, the tokens of one batch entry together; [1, heads, lanes]
    of one that does not begin with the rows."""
    if not by_row:
        return tensor.reshape(1, -1, tensor.shape[-1] if tensor.dim() else 1)
    if case.layout in ("sbhd", "bshd"):
        tensor = (tensor.transpose(0, 1) if case.layout == "sbhd" else tensor).flatten(0, 1)
    if tensor.dim() == 1:
        return tensor[:, None, None]
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1])


def heads_of_a_program(case: Case, heads: int) -> int:
    """Tiles named BLOCK_... cut the heads; others cut (token, head) rows, which are heads where
    the tile divides their number."""
    for name, size in case.tile.items():
        if size and size < heads and (name.startswith("BLOCK_") or heads % size == 0):
            return size
    return 0


def _first(hit: torch.Tensor, patterns: Iterator[Pattern], everything: str, other: str) -> str:
    if bool(hit.all()):
        return everything
    return next((name for name, mask in patterns if torch.equal(mask, hit)), other)


def _lanes(hit: torch.Tensor, rotated: torch.Tensor) -> str:
    """Lanes by what is done to them; halves and parity are those of the rotated lanes."""
    kinds = {"rotated": rotated, "copied": ~rotated}
    found = {name: mask for name, mask in kinds.items() if bool((hit & mask).any())}
    if all(torch.equal(hit & mask, mask) for mask in found.values()):
        return " and ".join(found) + " lanes"
    some = "some " + " and ".join(found) + " lanes"
    return _first(hit, _halves(rotated, "rotated lanes"), some, some)


def _halves(lanes: torch.Tensor, name: str) -> Iterator[Pattern]:
    """Parity and halves of some lanes."""
    index = lanes.cumsum(0) - 1
    half, even = index < int(lanes.sum()) // 2, index % 2 == 0
    yield f"even {name}", lanes & even
    yield f"odd {name}", lanes & ~even
    yield f"left half of the {name}", lanes & half
    yield f"right half of the {name}", lanes & ~half


def _heads(count: int, case: Case) -> Iterator[Pattern]:
    index = torch.arange(count)
    size = heads_of_a_program(case, count)
    if size:
        yield "heads of the partial tile", index >= count // size * size
        yield "heads past the first tile", index >= size
    yield "the first head", index == 0
    yield "heads after the first", index > 0
    yield "the last head", index == count - 1
    yield "even heads", index % 2 == 0
    yield "odd heads", index % 2 == 1


def _row_tiles(hit: torch.Tensor, case: Case) -> Iterator[Pattern]:
    """Tiles of (token, head) rows, of which the last may be partial."""
    tokens, heads = hit.shape[:2]
    sizes = [size for name, size in case.tile.items() if size and not name.startswith("BLOCK_")]
    for size in sizes:
        whole = tokens * heads // size * size
        if 0 < whole < tokens * heads:
            index = torch.arange(tokens * heads).view(tokens, heads)
            yield "rows of the partial tile", index >= whole


def _rows(count: int, case: Case) -> Iterator[Pattern]:
    """Patterns over the rows of a result that has one for each token."""
    sequence, position = _places(case)
    if len(sequence) == count:
        name = "sequence" if case.layout == "thd" else "batch entry"
        names = "sequences" if case.layout == "thd" else "batch entries"
        first = int(sequence[position >= 0].min()) if bool((position >= 0).any()) else 0
        for suffix, kept in (("", position >= 0), (", past its first row", position > 0)):
            yield f"every {name}{suffix}", kept
            yield f"{names} after the first{suffix}", (sequence > first) & kept
            yield f"the first {name}{suffix}", (sequence == first) & kept
            yield f"the last {name}{suffix}", (sequence == sequence.max()) & kept
        yield f"first rows of {names}", position == 0
        yield "rows of no sequence", sequence < 0
    index = torch.arange(count)
    yield "the first row", index == 0
    yield "rows after the first", index > 0
    yield "the last row", index == count - 1


def _places(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each token the number of its sequence (or batch entry) and its place there, else -1."""
    if case.layout in ("sbhd", "bshd"):
        tokens = torch.arange(case.axes["seq"] * case.axes["batch"])
        return tokens // case.axes["seq"], tokens % case.axes["seq"]
    sequence = torch.full((dims(case)["tokens"],), -1)  # in plain rows there is no sequence
    position = sequence.clone()
    start = 0
    for number, (length, gap) in enumerate(zip(case.lengths, case.gaps, strict=True)):
        own = length // case.cp_size
        sequence[start : start + own] = number
        position[start : start + own] = torch.arange(own)
        start += (length + gap) // case.cp_size
    return sequence, position


def _ranges(hit: torch.Tensor) -> str:
    """Runs of indices, as in ``0, 8..10 of 11``."""
    runs: list[list[int]] = []
    for index in hit.nonzero().flatten().tolist():
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    shown = [str(a) if a == b else f"{a}..{b}" for a, b in runs[:SHOWN]]
    return ", ".join(shown + ["..."] * (len(runs) > SHOWN)) + f" of {len(hit)}"
