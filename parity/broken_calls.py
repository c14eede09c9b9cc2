"""Illegal calls, each made of a legal one: what an op may be asked to refuse.

Each takes the inputs of a case and the arguments of its call, and returns changed arguments, or
None where the case has nothing to break.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .inputs import Inputs

Arguments = dict[str, Any]
Break = Callable[[Inputs, Arguments], Arguments | None]
TOO_MANY = 2**30 + 1  # rows; kernels count them in 32 bits


def _first(inputs: Inputs, kind: str) -> str | None:
    names = [item.name for item in inputs.spec.inputs if item.kind == kind]
    return next((name for name in names if name in inputs.tensors), None)


def _change(kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Break:
    """Replace the first input of a kind by a changed copy."""

    def broken(inputs: Inputs, arguments: Arguments) -> Arguments | None:
        name = _first(inputs, kind)
        return None if name is None else arguments | {name: change(arguments[name].clone())}

    return broken


def _change_tables(change: Callable[[torch.Tensor], torch.Tensor]) -> Break:
    """Change cos and sin alike."""

    def broken(inputs: Inputs, arguments: Arguments) -> Arguments | None:
        names = [name for kind in ("cos", "sin") if (name := _first(inputs, kind))]
        return arguments | {n: change(arguments[n].clone()) for n in names} if names else None

    return broken


def _short_table(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """One row fewer than sbhd has positions; in thd only the device knows how many there are."""
    if inputs.case.layout == "thd":
        return None
    rows = inputs.axes["seq"] - 1
    return _change_tables(lambda table: table[:rows].contiguous())(inputs, arguments)


def _one_lane_too_few(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """The last data tensor, which holds the rotated lanes, one lane short."""
    name = [item.name for item in inputs.spec.inputs if item.kind == "data"][-1]
    return arguments | {name: arguments[name][..., :-1].contiguous()}


def _second_dtype(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Two data tensors of different dtypes."""
    names = [item.name for item in inputs.spec.inputs if item.kind == "data"]
    if len(names) < 2:
        return None
    other = torch.float32 if inputs.case.dtype != "float32" else torch.bfloat16
    return arguments | {names[1]: arguments[names[1]].to(other)}


def _two_lengths(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Two data tensors of different numbers of rows."""
    names = [item.name for item in inputs.spec.inputs if item.kind == "data"]
    if len(names) < 2:
        return None
    return arguments | {names[1]: arguments[names[1]][:-1].contiguous()}


def _rotated_lanes(inputs: Inputs, more: int, other: int) -> Arguments:
    """The numbers of lanes of a call that rotates ``more`` lanes and keeps ``other`` more."""
    changes = {"rope_dim": more, "nope_dim": other}
    axes = inputs.case.axes
    names = inputs.spec.arguments.items()
    return {name: axes[axis] + changes[axis] for name, axis in names if axis in changes}


def _resized(arguments: Arguments, inputs: Inputs, lanes: int) -> Arguments:
    """Tables with this many lanes, all of them 1."""
    names = [name for kind in ("cos", "sin") if (name := _first(inputs, kind))]
    tables = {name: arguments[name] for name in names}
    return {name: table.new_ones(*table.shape[:-1], lanes) for name, table in tables.items()}


def _odd_rope_dim(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """One rotated lane fewer, everything else in keeping with it."""
    lanes = inputs.case.axes["rope_dim"] - 1
    broken = arguments | _rotated_lanes(inputs, -1, 1) | _resized(arguments, inputs, lanes)
    if "nope_dim" in inputs.spec.arguments.values():
        return broken
    return _one_lane_too_few(inputs, broken)


def _negative_kept_lanes(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """More lanes rotated than there are, so that fewer than none are kept."""
    lanes = inputs.case.axes["nope_dim"] + inputs.case.axes["rope_dim"]
    more = 2 if lanes % 2 == 0 else 1
    sizes = _rotated_lanes(inputs, lanes + more - inputs.case.axes["rope_dim"], 0)
    kept = {name: -more for name, axis in inputs.spec.arguments.items() if axis == "nope_dim"}
    return arguments | sizes | kept | _resized(arguments, inputs, lanes + more)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with every second element between them."""
    wide = tensor.new_zeros((*tensor.shape, 2))
    wide[..., 0] = tensor
    return wide[..., 0]


def _lanes_apart(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """The first data tensor with lanes that are not neighbours."""
    name = str(_first(inputs, "data"))
    tensor = arguments[name]
    return arguments | {name: _apart(tensor)} if tensor.shape[-1] > 1 else None


def _first_lane_too_few(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """The first data tensor one lane short."""
    name = str(_first(inputs, "data"))
    tensor = arguments[name]
    return arguments | {name: tensor[..., :-1].contiguous()} if tensor.shape[-1] else None


def _overlapping(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """A tensor to be written whose rows lie in one place."""
    name = str(_first(inputs, "data"))
    tensor = arguments[name]
    return arguments | {name: tensor[:1].expand_as(tensor)} if len(tensor) > 1 else None


def _two_table_dtypes(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Both legal, but not together."""
    cos, sin = (_first(inputs, kind) for kind in ("cos", "sin"))
    if inputs.case.dtype == "float32" or cos is None or sin is None:
        return None
    storage = getattr(torch, inputs.case.dtype)
    return arguments | {cos: arguments[cos].float(), sin: arguments[sin].to(storage)}


def _packing_with_sbhd(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Offsets for a tensor that has none."""
    names = [item.name for item in inputs.spec.inputs if item.kind == "cu_seqlens"]
    if inputs.case.layout != "sbhd" or not names:
        return None
    offsets = torch.tensor([0, inputs.axes["seq"]], dtype=torch.int32, device=inputs.device)
    return arguments | {names[0]: offsets}


def _no_positions(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """Neither offsets nor positions for a packed tensor."""
    if inputs.case.layout != "thd":
        return None
    kinds = ("cu_seqlens", "position_ids")
    return arguments | {item.name: None for item in inputs.spec.inputs if item.kind in kinds}


def _unknown_tile(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """A tile that no power of two is."""
    return arguments | dict.fromkeys(inputs.case.tile, 3) if inputs.case.tile else None


def _too_many_rows(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """More rows than 32 bits count, in tensors without memory."""
    if inputs.case.layout != "thd":
        return None  # the tables would be too short as well
    broken = {
        name: value.to("meta") if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    for item in inputs.spec.inputs:
        if item.kind == "data":
            tensor = broken[item.name]
            broken[item.name] = tensor.new_empty((TOO_MANY, *tensor.shape[1:]))
        elif item.kind == "position_ids":
            broken[item.name] = None
    return broken


def _rank_too_large(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """A context-parallel rank that its group does not have."""
    if "cp_size" not in arguments:
        return None
    return arguments | {"cp_rank": arguments["cp_size"]}


def _pairs_interleaved(inputs: Inputs, arguments: Arguments) -> Arguments | None:
    """A table that repeats each angle per pair, which no fused op takes."""
    return arguments | {"rotary_interleaved": True}


BREAKS: dict[str, Break] = {
    "narrow_table": _change_tables(lambda table: table[..., :-2].contiguous()),
    "narrow_cos": _change("cos", lambda table: table[..., :-2].contiguous()),
    "narrow_sin": _change("sin", lambda table: table[..., :-2].contiguous()),
    "wide_table": _change_tables(lambda table: torch.cat([table, table], dim=-1)),
    "short_table": _short_table,
    "table_of_integers": _change_tables(lambda table: table.to(torch.int32)),
    "one_table_in_another_dtype": _change("sin", torch.Tensor.double),
    "cos_in_another_dtype": _change("cos", torch.Tensor.double),
    "data_of_integers": _change("data", lambda tensor: tensor.to(torch.int32)),
    "data_without_heads": _change("data", lambda tensor: tensor.flatten()),
    "one_lane_too_few": _one_lane_too_few,
    "data_of_two_dtypes": _second_dtype,
    "rows_of_two_lengths": _two_lengths,
    "cu_seqlens_of_floats": _change("cu_seqlens", torch.Tensor.float),
    "cu_seqlens_in_two_dimensions": _change("cu_seqlens", lambda tensor: tensor[None]),
    "position_ids_too_few": _change("position_ids", lambda tensor: tensor[:-1]),
    "rank_beyond_its_group": _rank_too_large,
    "rotary_interleaved": _pairs_interleaved,
    "odd_rope_dim": _odd_rope_dim,
    "negative_kept_lanes": _negative_kept_lanes,
    "lanes_apart": _lanes_apart,
    "first_lane_too_few": _first_lane_too_few,
    "overlapping_elements": _overlapping,
    "too_many_rows": _too_many_rows,
    "table_lanes_apart": _change_tables(_apart),
    "table_of_three_axes": _change_tables(lambda table: table[:, None]),
    "table_with_a_batch": _change_tables(lambda t: t[:, None, None].expand(-1, 2, 1, -1)),
    "tables_of_two_lengths": _change("sin", lambda table: table[:-1].contiguous()),
    "tables_of_two_dtypes": _two_table_dtypes,
    "packing_with_sbhd": _packing_with_sbhd,
    "neither_packing_nor_positions": _no_positions,
    "padded_offsets_too_few": _change("cu_seqlens_padded", lambda offsets: offsets[:-1]),
    "cu_seqlens_apart": _change("cu_seqlens", _apart),
    "cu_seqlens_empty": _change("cu_seqlens", lambda offsets: offsets[:0]),
    "unknown_tile": _unknown_tile,
}
