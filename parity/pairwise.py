"""Covering arrays: few rows in which every pair of values of every two axes occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

Choice = tuple[str, int]
Pair = tuple[Choice, Choice]


def pairwise(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of a strength-2 covering array over ``axes``, by greedy construction, deterministic.

    Each row starts from a pair not yet covered and takes, axis by axis, the value that covers most
    of what is still open.  With fewer than two axes every value has a row of its own.
    """
    if len(axes) < 2:
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    sizes = {name: len(values) for name, values in axes.items()}
    open_pairs = dict.fromkeys(_pairs(sizes))
    rows = []
    while open_pairs:
        row = _row(sizes, open_pairs)
        for pair in combinations(row.items(), 2):
            open_pairs.pop(pair, None)
        rows.append({name: axes[name][index] for name, index in row.items()})
    return rows


def _pairs(sizes: Mapping[str, int]) -> list[Pair]:
    return [
        ((left, i), (right, j))
        for left, right in combinations(sizes, 2)
        for i in range(sizes[left])
        for j in range(sizes[right])
    ]


def _row(sizes: Mapping[str, int], open_pairs: Mapping[Pair, None]) -> dict[str, int]:
    first, second = next(iter(open_pairs))
    chosen = dict([first, second])
    for name in sizes:
        if name not in chosen:
            gains = [_gain((name, i), chosen, sizes, open_pairs) for i in range(sizes[name])]
            chosen[name] = gains.index(max(gains))
    return {name: chosen[name] for name in sizes}


def _gain(
    choice: Choice,
    chosen: Mapping[str, int],
    sizes: Mapping[str, int],
    open_pairs: Mapping[Pair, None],
) -> int:
    order = {name: position for position, name in enumerate(sizes)}
    return sum(
        tuple(sorted((choice, other), key=lambda item: order[item[0]])) in open_pairs
        for other in chosen.items()
    )
