"""Illegal calls that an op must refuse with ValueError: each a legal call with one thing broken.

Legal cases never hold such data by accident; here it is made on purpose.  Only what a host can see
without waiting for the device is asked for; the values of ``cu_seqlens`` and ``position_ids`` are
not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .checks import Evidence
from .inputs import Inputs, build_inputs
from .observe import candidate_function, describe_error
from .record import Finding
from .spec import Unsupported

Arguments = dict[str, Any]
Break = Callable[[Inputs, Arguments], Arguments | None]


def refuses(evidence: Evidence) -> tuple[str, list[Finding]]:
    """Make one illegal call of those that the contract lists and this case can break."""
    case = evidence.seen.inputs.case
    inputs = build_inputs(evidence.seen.inputs.spec, case, evidence.seen.inputs.device)
    arguments: Arguments = {
        item.name: inputs.tensors[item.name].tensor if item.name in inputs.tensors else None
        for item in inputs.spec.inputs
    }
    arguments |= {**inputs.constants, **case.tile}
    broken = {name: BREAKS[name](inputs, arguments) for name in inputs.spec.refuses}
    applicable = [name for name, call in broken.items() if call is not None]
    if not applicable:
        return "", []
    name = applicable[case.seed % len(applicable)]
    try:
        return f"refuses:{name}", _refused(inputs, name, broken[name] or {})
    except Unsupported:
        return "", []  # a revision that lacks the argument has refused nothing


def _refused(inputs: Inputs, name: str, call: Arguments) -> list[Finding]:
    got = "it returned a result"
    try:
        candidate_function(inputs.spec.candidate)(**call)
    except ValueError:
        return []
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001  # every other exception is what the finding reports
        got = f"it raised {describe_error(error)[0]}"
    return [
        Finding(
            f"refuses:{name}",
            "forward",
            got,
            sentence=f"Expected a ValueError for {name.replace('_', ' ')} but {got}.",
        )
    ]


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
    rows = inputs.rows["seq"] - 1
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
    "wide_table": _change_tables(lambda table: torch.cat([table, table], dim=-1)),
    "short_table": _short_table,
    "table_of_integers": _change_tables(lambda table: table.to(torch.int32)),
    "one_table_in_another_dtype": _change("sin", torch.Tensor.double),
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
}
