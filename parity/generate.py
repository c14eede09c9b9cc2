"""Cases from a contract: finite axes pairwise by construction, open axes drawn at random.

Every draw goes through one ``random.Random``.  A plan seeds it itself; Hypothesis hands in its own
``Random`` (:mod:`parity.strategies`), so that both make cases by the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Any

from .case import Case
from .pairwise import pairwise
from .sizes import Series, series
from .spec import OpSpec
from .storage import STORAGES

MAX_ROWS = 32  # (token, head) rows of a generated case: the interpreter pays for each of them
FAR = 100_000  # positions that no int16 and no float16 holds
SPARE_POSITIONS = (0, 3, FAR)
NARROW = 4  # rope lanes of a far table, whose every row is filled and guarded
SERVED = 32  # cases in a row that one compilation serves: a GPU spends more on it than on a case
OF_DATA = ("halves", "tail", "variant:values")  # choices that no compilation depends on
MANY_SEQUENCES = 70  # most of them empty: more than a search over cu_seqlens sees in one step


@lru_cache(maxsize=64)
def finite_axes(spec: OpSpec, layout: str) -> Mapping[str, Sequence[Any]]:
    """The axes of a layout that have finitely many values, simplest value first."""
    tables = spec.has("cos")
    axes: dict[str, Sequence[Any]] = {
        "dtype": spec.dtypes,
        "table_dtype": spec.table_dtypes if tables else ("float32",),
        "halves": spec.halves if tables else ("different",),
        "cp_size": spec.cp_sizes if layout == "thd" else (1,),
        "tail": (False, True) if layout == "thd" and spec.pad_rows != "forbidden" else (False,),
        "gaps": (False, True) if layout == "thd" and spec.has("cu_seqlens_padded") else (False,),
    }
    axes |= {"spare_positions": SPARE_POSITIONS} if tables else {}
    axes |= {f"flag:{name}": values for name, values in spec.flags_of(layout).items()}
    axes |= {f"tile:{name}": values for name, values in spec.tiles.items()}
    axes |= {f"variant:{name}": values for name, values in _variants(spec, layout).items()}
    return axes


def _variants(spec: OpSpec, layout: str) -> dict[str, Sequence[str]]:
    variants: dict[str, Sequence[str]] = {
        item.name: item.strides for item in spec.inputs if item.shape
    }
    variants |= {f"{item.name}.grad": spec.gradients for item in spec.outputs}
    if spec.shares_storage:
        variants["storage"] = STORAGES
    variants["values"] = spec.values
    if layout == "thd":
        variants["cu_seqlens"] = ("int32", "int64")
        ids = spec.has("position_ids")
        variants["position_ids"] = ("absent", "int32", "int64") if ids else ("absent",)
    return variants


def plan(spec: OpSpec, count: int, seed: int) -> list[Case]:
    """At least ``count`` different cases, the same on every machine.

    Every layout gets its whole pairwise covering array, however small ``count`` is, in which the
    ranks of each ``cp_size`` take turns, and the series of :mod:`parity.sizes`; further cases take
    random values on the finite axes too, :data:`SERVED` at a time the same ones but for those of
    :data:`OF_DATA`.
    """
    random = Random(f"{spec.name}/{seed}")
    cases: dict[str, Case] = {}
    turns: Counter[int] = Counter()
    for layout in spec.layouts:
        for row in pairwise(finite_axes(spec, layout)):
            case = build(spec, layout, row, random)
            case = replace(case, cp_rank=turns[case.cp_size] % case.cp_size)
            turns[case.cp_size] += 1
            cases[case.id] = case
    for one in sized(spec):
        cases |= {case.id: case for case in one.cases}
    of_data = Random(f"{spec.name}/{seed}/data")
    for number in range(10 * count):  # a tiny op may not have that many different cases
        if len(cases) >= count:
            break
        if number % SERVED == 0:
            layout, row = _choice(spec, random)
            lanes: Mapping[str, int] = {}
            axes = finite_axes(spec, layout)
        row |= {name: of_data.choice(axes[name]) for name in OF_DATA}
        case = build(spec, layout, row, random, lanes)
        lanes = {name: case.axes[name] for name in spec.axes if name != "heads"}
        cases[case.id] = case
    return list(cases.values())


def sized(spec: OpSpec) -> list[Series]:
    """The series of every layout, from the simplest choice on each finite axis."""
    usual = (
        (layout, {name: values[0] for name, values in finite_axes(spec, layout).items()})
        for layout in spec.layouts
    )
    random = Random(f"{spec.name}/sizes")
    return [one for layout, row in usual for one in series(spec, build(spec, layout, row, random))]


def draw(spec: OpSpec, random: Random) -> Case:
    """One random case."""
    return build(spec, *_choice(spec, random), random)


def _choice(spec: OpSpec, random: Random) -> tuple[str, dict[str, Any]]:
    """A layout, and a random value on each of its finite axes."""
    layout = random.choice(spec.layouts)
    axes = finite_axes(spec, layout)
    return layout, {name: random.choice(values) for name, values in axes.items()}


def build(
    spec: OpSpec,
    layout: str,
    row: Mapping[str, Any],
    random: Random,
    lanes: Mapping[str, int] | None = None,
) -> Case:
    """The case with the finite choices of ``row`` and random values on the open axes.

    ``lanes`` gives some of those, which kernels are compiled for, instead.
    """
    axes = {name: _integer(values, random) for name, values in spec.axes.items()}
    axes |= lanes or {}
    budget = max(2, MAX_ROWS // axes.get("heads", 1))
    if layout == "plain":
        axes["tokens"] = _integer(range(1, budget + 1), random)
    elif layout != "thd":
        axes["seq"] = _integer(range(1, budget // 2 + 1), random)
        axes["batch"] = _integer(range(1, min(3, budget // axes["seq"]) + 1), random)
    if "spare_positions" in row:
        axes["spare_positions"] = row["spare_positions"]
    if row.get("spare_positions") == FAR:
        axes |= {name: _narrow(spec.axes[name]) for name in _table_axes(spec)}
    return Case(
        op=spec.name,
        layout=layout,
        dtype=row["dtype"],
        table_dtype=row["table_dtype"],
        halves=row["halves"],
        axes=axes,
        flags=_group(row, "flag:"),
        variants=_group(row, "variant:"),
        tile=_group(row, "tile:"),
        seed=random.randrange(2**16),
        **(_pack(row, budget, random) if layout == "thd" else {}),
    )


def _table_axes(spec: OpSpec) -> set[str]:
    """The axes of tables beside their positions."""
    shapes = [item.shape.split() for item in spec.inputs if item.kind in ("cos", "sin")]
    return {name for shape in shapes for name in shape} & set(spec.axes)


def _narrow(values: Sequence[int]) -> int:
    """The widest value that is still narrow, else the smallest there is."""
    return max((value for value in values if value <= NARROW), default=min(values))


def _group(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)
    }


def _pack(row: Mapping[str, Any], budget: int, random: Random) -> dict[str, Any]:
    cp_size = row["cp_size"]
    unit = 1 if cp_size == 1 else 2 * cp_size
    longest = max(1, budget * cp_size // unit // 2)
    count = _integer((*range(1, 6), MANY_SEQUENCES), random)
    lengths = [unit * _length(longest, random) for _ in range(count)]
    if count == MANY_SEQUENCES:
        lengths = [unit * (random.randrange(count) < longest // unit) for _ in lengths]
    if not any(lengths):
        lengths[random.randrange(count)] = unit
    gaps = [unit * random.randrange(3) if row["gaps"] else 0 for _ in lengths]
    if row["gaps"] and not _moves_rows(lengths, gaps):
        lengths, gaps = [*lengths, unit], [unit, *gaps]
    return {
        "lengths": tuple(lengths),
        "gaps": tuple(gaps),
        "tail": random.randrange(1, 4) if row["tail"] else 0,
        "cp_size": cp_size,
        "cp_rank": random.randrange(cp_size),
    }


def _moves_rows(lengths: list[int], gaps: list[int]) -> bool:
    """Whether a gap lies before a row of a sequence; behind all of them it is but a tail."""
    last = max(place for place, length in enumerate(lengths) if length)
    return any(gaps[:last])


def _length(longest: int, random: Random) -> int:
    return random.choice((0, 1, random.randint(1, longest), random.randint(1, min(5, longest))))


def _integer(values: Sequence[int], random: Random) -> int:
    """Mostly among the first eight legal values, sometimes anywhere."""
    end = len(values) if random.randrange(4) == 3 else min(8, len(values))
    return values[random.randrange(end)]


def choices(case: Case) -> dict[str, Any]:
    """The values of a case on the axes that :func:`finite_axes` lists."""
    values: dict[str, Any] = {
        "dtype": case.dtype,
        "table_dtype": case.table_dtype,
        "halves": case.halves,
        "cp_size": case.cp_size,
        "tail": case.tail > 0,
        "gaps": any(case.gaps),
    }
    if "spare_positions" in case.axes:
        values["spare_positions"] = case.axes["spare_positions"]
    values |= {f"flag:{name}": value for name, value in case.flags.items()}
    values |= {f"tile:{name}": value for name, value in case.tile.items()}
    return values | {f"variant:{name}": value for name, value in case.variants.items()}


def is_legal(spec: OpSpec, case: Case) -> str:
    """Why the contract forbids this case, in one sentence, or an empty string."""
    if case.op != spec.name:
        return f"Expected a case of op {spec.name!r} but got one of {case.op!r}."
    if case.layout not in spec.layouts:
        return f"Expected a layout among {spec.layouts} but got {case.layout!r}."
    rows = {"thd": (), "plain": ("tokens",)}.get(case.layout, ("seq", "batch"))
    allowed: dict[str, Any] = {**finite_axes(spec, case.layout), **spec.axes}
    allowed |= dict.fromkeys(rows, range(1, 2**31))
    older = {"variant:storage": "apart"} if spec.shares_storage else {}  # kept before it was asked
    values: dict[str, Any] = {**older, **choices(case), **dict.fromkeys(rows, 1), **case.axes}
    if set(values) != set(allowed):
        odd = sorted(set(values) ^ set(allowed))
        return f"Expected the axes of op {spec.name!r} in {case.layout} but {odd} differ."
    for name, value in values.items():
        if value not in allowed[name]:
            return f"Expected {name} in {_shown(allowed[name])} but got {value!r}."
    return _illegal_pack(case)


def refuse_illegal(specs: Mapping[str, OpSpec], case: Case, where: str) -> None:
    """ValueError, which begins with ``where`` the case was found, unless a contract allows it."""
    if case.op not in specs:
        raise ValueError(
            f"{where}: Expected an op among {', '.join(specs)} but got {case.op!r}; name its "
            "contracts with --ops."
        )
    if reason := is_legal(specs[case.op], case):
        raise ValueError(f"{where}: {reason} Mend the case, or take it out.")


def _illegal_pack(case: Case) -> str:
    if case.layout != "thd":
        return "Expected no packing outside thd." if case.lengths else ""
    unit = 1 if case.cp_size == 1 else 2 * case.cp_size
    if len(case.lengths) != len(case.gaps) or not case.lengths:
        return "Expected one gap for each of at least one sequence."
    if any(value % unit for value in (*case.lengths, *case.gaps)):
        return f"Expected lengths divisible by 2*cp_size but got {case.lengths} and {case.gaps}."
    if case.cp_rank >= case.cp_size:
        return f"Expected cp_rank below cp_size but got {case.cp_rank} of {case.cp_size}."
    return "" if sum(case.lengths) else "Expected at least one token."


def _shown(allowed: Sequence[Any]) -> str:
    shown = [repr(value) for value in allowed[:8]]
    return ", ".join(shown + ["..."] * (len(allowed) > 8))


def coverage(spec: OpSpec, cases: Iterable[Case]) -> tuple[int, int]:
    """(pairs of finite choices that occur in ``cases``, pairs that could), over all layouts."""
    seen: set[tuple[object, ...]] = set()
    for case in cases:
        chosen = choices(case)
        axes = [name for name in finite_axes(spec, case.layout) if name in chosen]
        seen |= {(case.layout, a, chosen[a], b, chosen[b]) for a, b in combinations(axes, 2)}
    possible = 0
    for layout in spec.layouts:
        sizes = [len(values) for values in finite_axes(spec, layout).values()]
        possible += sum(a * b for a, b in combinations(sizes, 2))
    return len(seen), possible
