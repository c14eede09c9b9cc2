"""Relations between a pack of sequences and other packs, or each sequence by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ..case import Case
from ..inputs import dims, rows_in_sequences
from ..spec import OpSpec
from .derived import Derived, dense, whole


def _starts(sizes: list[int]) -> list[int]:
    return [0, *accumulate(sizes)]


def _places(case: Case) -> list[int]:
    """The local row at which each sequence begins, then the first row of the tail."""
    padded = zip(case.lengths, case.gaps, strict=True)
    return _starts([(length + gap) // case.cp_size for length, gap in padded])


def _positioned(case: Case) -> bool:
    return case.variants["position_ids"] != "absent"


def _whole_pack(case: Case) -> bool:
    return bool(case.flags.get("whole_pack_table", False))


def thd_is_sbhd_each(spec: OpSpec, case: Case) -> list[Derived]:
    """Every sequence of a pack gives what it gives alone, as SBHD with batch 1."""
    if case.layout != "thd" or case.cp_size > 1 or _positioned(case):
        return []
    starts = _starts(list(case.lengths))
    return [
        _alone(spec, case, place, length, start if _whole_pack(case) else 0)
        for place, length, start in zip(_places(case), case.lengths, starts, strict=False)
        if length
    ]


def _alone(spec: OpSpec, case: Case, place: int, length: int, table_row: int) -> Derived:
    """The ``length`` rows from ``place`` on, with the tables from ``table_row`` on."""
    axes = {**case.axes, "seq": length, "batch": 1}
    simplest = dense(spec, case)
    dropped = ("cu_seqlens", "position_ids")
    alone = replace(
        simplest,
        layout="sbhd",
        axes=axes,
        lengths=(),
        gaps=(),
        tail=0,
        flags={name: case.flags[name] for name in spec.flags},
        variants={name: v for name, v in simplest.variants.items() if name not in dropped},
    )
    end = table_row + length + case.axes.get("spare_positions", 0)
    return Derived(
        spec,
        alone,
        across="rows",
        change=lambda t: t[place : place + length].unsqueeze(1),
        table=(lambda t: t[table_row:end]) if table_row else whole,  # all tables begin alike
        ours=lambda t: t[place : place + length],
        theirs=lambda t: t.squeeze(1),
    )


def permuted_sequences(spec: OpSpec, case: Case) -> list[Derived]:
    """The sequences of a pack in reverse order give the same results in reverse order.

    A table that runs over the pack is reversed with them, unless position_ids point into it; the
    rows of no sequence then meet another row 0 and are left out.
    """
    if case.layout != "thd" or len(case.lengths) < 2:
        return []
    rows = _reversed_blocks(_places(case), dims(case)["tokens"])
    starts = _starts(list(case.lengths))
    moved = _whole_pack(case) and not _positioned(case)
    kept = rows_in_sequences(case)[rows] if moved else torch.ones_like(rows, dtype=torch.bool)
    turned = dense(spec, case, lengths=case.lengths[::-1], gaps=case.gaps[::-1])
    return [
        Derived(
            spec,
            turned,
            across="rows",
            change=lambda t: t[rows],
            table=lambda t: t[_reversed_blocks(starts, len(t))] if moved else t,
            ours=lambda t: t[rows[kept]],
            theirs=lambda t: t[kept],
        )
    ]


def _reversed_blocks(starts: list[int], total: int) -> Tensor:
    """Indices that put the blocks which begin at ``starts`` in reverse order; what follows the
    last of them, up to ``total``, stays."""
    blocks = [torch.arange(a, b) for a, b in pairwise(starts)]
    return torch.cat([*blocks[::-1], torch.arange(starts[-1], total)])


def inserted_empty_sequences(spec: OpSpec, case: Case) -> list[Derived]:
    """Empty sequences before, between and behind the others change nothing."""
    if case.layout != "thd":
        return []
    lengths, gaps = [0], [0]
    for length, gap in zip(case.lengths, case.gaps, strict=True):
        lengths += [length, 0]
        gaps += [gap, 0]
    more = dense(spec, case, lengths=tuple(lengths), gaps=tuple(gaps))
    return [Derived(spec, more, across="rows")]  # an output with a row for each sequence gets more


def poisoned_neighbour(spec: OpSpec, case: Case) -> list[Derived]:
    """NaN in one sequence, in the rows behind every sequence and in the tail, in data and in the
    incoming gradient, leaves all other rows as they are."""
    if case.layout != "thd":
        return []
    hit = _poisoned_rows(case)
    if bool(hit.all()) or not bool(hit.any()):
        return []
    return [
        Derived(
            spec,
            dense(spec, case),
            across="rows",
            change=lambda t: _poison(t, hit),
            ours=lambda t: t[~hit],
            theirs=lambda t: t[~hit],
        )
    ]


def _poisoned_rows(case: Case) -> Tensor:
    """Rows of no sequence, and of one sequence where there are several that are not empty."""
    hit = ~rows_in_sequences(case)
    filled = [i for i, length in enumerate(case.lengths) if length]
    if len(filled) > 1:
        victim = filled[case.seed % len(filled)]
        place = _places(case)[victim]
        hit[place : place + case.lengths[victim] // case.cp_size] = True
    return hit


def _poison(tensor: Tensor, hit: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    poisoned = tensor.clone()
    poisoned[hit] = torch.nan
    return poisoned


def cp_ranks_reassemble(spec: OpSpec, case: Case) -> list[Derived]:
    """A rank of a context-parallel group gives its rows of what one rank gives for them all."""
    if case.layout != "thd" or case.cp_size == 1:
        return []
    one = dense(spec, case, cp_size=1, cp_rank=0)
    rows, tokens = _rows_of_rank(case), dims(one)["tokens"]

    def placed(tensor: Tensor) -> Tensor:
        complete = tensor.new_zeros(tokens, *tensor.shape[1:])
        complete[rows] = tensor
        return complete

    return [Derived(spec, one, "rows", change=placed, theirs=lambda t: t[rows])]


def _rows_of_rank(case: Case) -> Tensor:
    """The row of the complete pack behind every row of this rank.

    A sequence is cut into ``2 * cp_size`` chunks, of which rank r holds chunk r and, counted from
    the end, chunk r.  Rows of no sequence may stand for any of their kind.
    """
    rows: list[int] = []
    place = 0
    for length, gap in zip(case.lengths, case.gaps, strict=True):
        chunk = length // (2 * case.cp_size)
        early = place + case.cp_rank * chunk
        late = place + length - (case.cp_rank + 1) * chunk
        rows += [*range(early, early + chunk), *range(late, late + chunk)]
        rows += range(place + length, place + length + gap // case.cp_size)
        place += length + gap
    return torch.tensor([*rows, *range(place, place + case.tail)], dtype=torch.int64)
