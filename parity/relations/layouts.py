"""Relations between memory layouts, tiles, dtypes of indices, twins, and parts of a tensor."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from torch import Tensor

from ..case import Case
from ..spec import OpSpec
from .derived import Derived, dense, restrided


def batch_split(spec: OpSpec, case: Case) -> list[Derived]:
    """The first batch entry and the others, each by themselves, give what they give together."""
    batch = case.axes.get("batch", 1)
    if batch < 2:
        return []
    axis = 1 if case.layout == "sbhd" else 0
    return [_part(spec, case, "rows", "batch", axis, range(*ends)) for ends in ((1,), (1, batch))]


def head_split(spec: OpSpec, case: Case) -> list[Derived]:
    """Two groups of heads, each by itself, give what they give together, but for sums over heads.

    An op that mixes its heads otherwise must call that axis something else.
    """
    heads = case.axes.get("heads", 1)
    legal = spec.axes.get("heads", ())
    cuts = [size for size in legal if size < heads and heads - size in legal]
    if not cuts:
        return []
    cut = cuts[case.seed % len(cuts)]
    axis = 2 if case.layout in ("sbhd", "bshd") else 1
    groups = (range(cut), range(cut, heads))
    return [_part(spec, case, "heads", "heads", axis, group) for group in groups]


def _part(spec: OpSpec, case: Case, across: str, axis_name: str, axis: int, part: range) -> Derived:
    """The case on ``part`` of one axis only."""

    def narrow(tensor: Tensor) -> Tensor:
        return tensor.narrow(axis, part.start, len(part))

    smaller = dense(spec, case, axes={**case.axes, axis_name: len(part)})
    return Derived(spec, smaller, across, change=narrow, ours=narrow)


def contiguous_is_strided(spec: OpSpec, case: Case) -> list[Derived]:
    """Where the elements lie in memory makes no difference."""
    other = restrided(spec, case)
    return [Derived(spec, other)] if other != case else []


def int32_is_int64(spec: OpSpec, case: Case) -> list[Derived]:
    """Offsets and positions mean the same in either dtype."""
    if case.layout != "thd":
        return []
    other = {"int32": "int64", "int64": "int32", "absent": "absent"}
    turned = {name: other[case.variants[name]] for name in ("cu_seqlens", "position_ids")}
    return [Derived(spec, replace(case, variants={**case.variants, **turned}))]


def every_tile(spec: OpSpec, case: Case) -> list[Derived]:
    """Every other tile gives the same bits, each into memory of its own.

    Only where the contract promises bits: elsewhere each tile is held to its bound in cases of its
    own, and a case in a sound tile must not be blamed for another tile's fault.
    """
    if not spec.bit_equal:
        return []
    chosen = [
        dict(zip(spec.tiles, values, strict=True)) for values in product(*spec.tiles.values())
    ]
    return [Derived(spec, replace(case, tile=tile)) for tile in chosen if tile != case.tile]


def in_place_is_out_of_place(spec: OpSpec, case: Case) -> list[Derived]:
    """The op's twin gives the same, though one of them writes its argument."""
    if spec.twin is None:
        return []
    return [Derived(replace(spec, candidate=spec.twin), dense(spec, case))]
