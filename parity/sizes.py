"""Cases that differ in one size only, by which cost is fitted as a function of that size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .case import Case
from .spec import OpSpec

USUAL = {"tokens": 16, "heads": 4, "sequences": 4}
SIZES = {"tokens": (8, 16, 32), "heads": (4, 8, 16), "sequences": (4, 16, 64)}
WIDTH = 64  # the largest value of an axis that does not vary


@dataclass(frozen=True)
class Series:
    """Cases of one layout along one axis, smallest first."""

    axis: str
    layout: str
    sizes: tuple[int, ...]
    cases: tuple[Case, ...]


def series(spec: OpSpec, plain: Case) -> list[Series]:
    """The sizes that the contract lets vary, from a case with the usual choice of all else.

    None for an op that has tokens only: each would cost it three cases, to see little.
    """
    heads = set(spec.axes.get("heads", ()))
    varied = {"tokens"} | ({"heads"} if set(SIZES["heads"]) <= heads else set())
    varied |= {"sequences"} if plain.layout == "thd" else set()
    if varied == {"tokens"}:
        return []
    return [
        Series(
            axis,
            plain.layout,
            SIZES[axis],
            tuple(_sized(spec, plain, USUAL | {axis: size}) for size in SIZES[axis]),
        )
        for axis in SIZES
        if axis in varied
    ]


def _sized(spec: OpSpec, plain: Case, sizes: dict[str, int]) -> Case:
    axes = {name: _widest(values) for name, values in spec.axes.items()}
    axes |= {name: plain.axes[name] for name in plain.axes if name not in axes}
    if sizes["heads"] in spec.axes.get("heads", ()):
        axes["heads"] = sizes["heads"]
    if plain.layout == "thd":
        lengths = _lengths(sizes["tokens"], sizes["sequences"])
        return replace(plain, axes=axes, lengths=lengths, gaps=(0,) * len(lengths))
    if plain.layout == "plain":
        return replace(plain, axes=axes | {"tokens": sizes["tokens"]})
    return replace(plain, axes=axes | {"seq": sizes["tokens"], "batch": 1})


def _widest(values: Sequence[int]) -> int:
    return max([value for value in values if value <= WIDTH] or [min(values)])


def _lengths(tokens: int, sequences: int) -> tuple[int, ...]:
    """Empty sequences first, so that a search which stops at a row's own still passes them."""
    full = USUAL["sequences"]
    return (0,) * (sequences - full) + (tokens // full,) * full
