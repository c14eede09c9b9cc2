"""Representative calls of an op, for its generated code: real sizes, every kind of specialisation.

Triton compiles a kernel anew for each dtype, each constexpr, each argument that is 1 or a multiple
of 16 and each pointer that is aligned to 16 bytes, so a case matters here only through those.  The
plan is a star: one usual call for each layout, and calls that differ from it in one thing.  Every
tile is in every layout, all else in the first that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..case import Case
from ..generate import finite_axes
from ..spec import OpSpec

_COMPILED = (  # other axes change what is in memory only
    "dtype", "table_dtype", "cp_size", "gaps", "variant:cu_seqlens", "variant:position_ids",
)  # fmt: skip
_GROUPS = ("flag:", "tile:")
_POSITIONS = 16  # of each sequence: as divisible as the thousands of a real one


@dataclass(frozen=True)
class Call:
    """A case, its tile and the rest of what it is, in words."""

    case: Case
    tile: str
    specialisation: str


def calls(spec: OpSpec) -> list[Call]:
    """The representative calls of an op; no two have the same case."""
    found: dict[str, Call] = {}
    varied: set[tuple[str, Any]] = set()
    for layout in spec.layouts:
        found |= {call.case.id: call for call in _star(spec, layout, varied)}
    return list(found.values())


def usual_calls(spec: OpSpec) -> list[Call]:
    """The usual call of each layout: bfloat16, fp32 tables, contiguous, the tile that is chosen."""
    return [next(_star(spec, layout, set())) for layout in spec.layouts]


def _star(spec: OpSpec, layout: str, varied: set[tuple[str, Any]]) -> Iterator[Call]:
    """The usual call, one for each tile, and one for each thing no earlier layout varied."""
    axes = _choices(spec, layout)
    usual = {name: values[0] for name, values in axes.items()}
    yield _call(spec, layout, usual, usual)
    for name, values in axes.items():
        for value in values[1:]:
            if name.startswith("tile:") or (name, value) not in varied:
                yield _call(spec, layout, usual | {name: value}, usual)
            varied.add((name, value))


def _choices(spec: OpSpec, layout: str) -> dict[str, Sequence[Any]]:
    """Every finite axis with its values, the usual one first."""
    placed = {item.name for item in spec.inputs} | {f"{item.name}.grad" for item in spec.outputs}
    compiled = {*_COMPILED, *(f"variant:{name}" for name in placed)}
    axes = {
        name: values if name in compiled or name.startswith(_GROUPS) else values[:1]
        for name, values in finite_axes(spec, layout).items()
    }
    axes["dtype"] = sorted(axes["dtype"], key=lambda dtype: str(dtype) != "bfloat16")
    axes |= {f"axis:{name}": _sizes(values) for name, values in spec.axes.items()}
    if layout in ("sbhd", "bshd"):
        axes["batch"] = (2, 1)  # 1 is compiled in
    return axes


def _call(spec: OpSpec, layout: str, row: Mapping[str, Any], usual: Mapping[str, Any]) -> Call:
    tile = _group(row, "tile:")
    words = [layout, row["dtype"]]
    words += [_words(name, row[name]) for name in row if row[name] != usual[name] and _told(name)]
    return Call(
        _case(spec, layout, row, tile),
        ", ".join(f"{name}={_chosen(value)}" for name, value in tile.items()) or "-",
        " ".join(words),
    )


def _case(spec: OpSpec, layout: str, row: Mapping[str, Any], tile: dict[str, Any]) -> Case:
    axes = _group(row, "axis:")
    named = {item.name: row[item.name] for item in fields(Case) if item.name in row}
    named |= {"gaps": (), "tail": 0}
    if layout == "thd":
        length = _POSITIONS * row["cp_size"]
        gaps = (length, length) if row["gaps"] else (0, 0)
        named |= {"lengths": (length, length), "gaps": gaps}
    elif layout == "plain":
        axes["tokens"] = _POSITIONS
    else:
        axes |= {"seq": _POSITIONS, "batch": row["batch"]}
    if "spare_positions" in row:
        axes["spare_positions"] = row["spare_positions"]
    return Case(
        op=spec.name,
        layout=layout,
        axes=axes,
        flags=_group(row, "flag:"),
        variants=_group(row, "variant:"),
        tile=tile,
        **named,
    )


def _sizes(values: Sequence[int]) -> list[int]:
    """The largest legal power of two up to 128, that up to 64, other numbers, and 0.

    Of the others: the largest that 8 divides and 16 does not, which rows of a 16-bit dtype need to
    stay aligned and Triton does not know of, and the largest that is no power of two.
    """
    powers = [value for value in values if value > 0 and not value & (value - 1)]
    upto = [[value for value in powers if value <= limit] for limit in (128, 64)]
    eights = [value for value in values if value % 16 == 8]
    others = [value for value in values if value & (value - 1)]
    found = [max(some) for some in (*upto, eights, others) if some]
    return list(dict.fromkeys([*found, *(value for value in values if not value)])) or [min(values)]


def _group(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)
    }


def _told(name: str) -> bool:
    return name != "dtype" and not name.startswith("tile:")


def _words(name: str, value: object) -> str:
    group, _, own = name.rpartition(":")
    return f"{own}:{value}" if group == "variant" else f"{own}={value}".replace(" ", "")


def _chosen(value: object) -> str:
    return "default" if value is None else str(value)
