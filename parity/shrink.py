"""Make a failing case small: the simplest value of every choice with which it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from .case import Case
from .generate import choices, finite_axes, is_legal
from .spec import OpSpec
from .storage import arrangement

PLAIN = (
    False,
    None,
    "contiguous",
    "absent",
    "apart",
    "int32",
    "normal",
)  # values of a choice that is no choice


@dataclass
class Budget:
    """How much shrinking may cost; ``exhausted`` tells that a smaller case may exist."""

    runs: int = 80
    seconds: float = 30.0
    spent: int = 0
    exhausted: bool = False
    started: float = field(default_factory=time.monotonic)

    def allows_another(self) -> bool:
        """Count one more run, unless it would be too many or the time is over."""
        late = time.monotonic() - self.started > self.seconds
        self.exhausted = late or self.spent >= self.runs
        self.spent += not self.exhausted
        return not self.exhausted


def weight(case: Case) -> tuple[int, int, str]:
    """Order cases from simple to involved: elements first, then choices, then the text."""
    rows = sum(case.lengths) + sum(case.gaps) + case.tail + len(case.lengths)
    chosen = [*case.flags.values(), *case.variants.values(), *case.tile.values()]
    involved = sum(value not in PLAIN for value in chosen)
    return (max(1, rows) * prod(max(1, size) for size in case.axes.values()), involved, case.id)


def summary(case: Case) -> str:
    """A case in a few words: its sizes, and every choice that is not the plain one."""
    words = [case.layout, case.dtype, *(f"{name}={size}" for name, size in case.axes.items())]
    words += [f"table_dtype={case.table_dtype}"] * (case.table_dtype != "float32")
    words += [f"halves={case.halves}"] * (case.halves != "different")
    if case.lengths:
        words.append(f"lengths={list(case.lengths)}")
    words += [f"gaps={list(case.gaps)}"] * any(case.gaps) + [f"tail={case.tail}"] * bool(case.tail)
    if case.cp_size > 1:
        words.append(f"cp={case.cp_rank} of {case.cp_size}")
    chosen = {**case.flags, **case.variants, **case.tile}
    chosen |= {"storage": f"shared ({lie})"} if (lie := arrangement(case)) else {}
    return " ".join(words + [f"{k}={v}" for k, v in chosen.items() if v not in PLAIN])


def shrink(
    spec: OpSpec, case: Case, still_fails: Callable[[Case], bool], budget: Budget | None = None
) -> Case:
    """The simplest case found for which ``still_fails`` holds; ``case`` itself is taken to fail.

    Only cases that the contract allows are tried, each once, in a fixed order, so that the result
    is the same every time unless the budget runs out (``budget.exhausted``).
    """
    budget = budget or Budget()
    tried = {case.id}
    progress = True
    while progress:
        progress = False
        for simpler in _simpler(spec, case):
            if simpler.id in tried or is_legal(spec, simpler):
                continue
            tried.add(simpler.id)
            if not budget.allows_another():
                return case
            if still_fails(simpler):
                case, progress = simpler, True
                break
    return case


def siblings(spec: OpSpec, case: Case) -> Iterator[Case]:
    """The same sizes and seed with fewer choices: without one that an arm may lack, then with plain
    memory layouts and values, then with plain choices too.

    The seed keeps which relation or effect is looked at, so that an arm which refuses this case
    can show there what it hides here.
    """
    simplest = {name: values[0] for name, values in finite_axes(spec, case.layout).items()}
    plain = [name for name in choices(case) if name in simplest]
    layouts = [name for name in plain if name.startswith("variant:")]
    lacked = [[name] for name in plain if name == "cp_size" or name.startswith("flag:")]
    seen = {case.id}
    for names in (*lacked, layouts, plain):
        sibling = case
        for name in names:
            sibling = _with_choice(sibling, name, simplest[name])
        if sibling.id not in seen and not is_legal(spec, sibling):
            seen.add(sibling.id)
            yield sibling


def _simpler(spec: OpSpec, case: Case) -> Iterator[Case]:
    """Cases one step simpler, the boldest steps first."""
    yield from _less_packing(case)
    for axis, size in case.axes.items():
        legal = spec.axes.get(axis, range(1, size))
        for smaller in _towards(size, sorted(value for value in legal if value < size)):
            yield replace(case, axes={**case.axes, axis: smaller})
    current = choices(case)
    for name, values in finite_axes(spec, case.layout).items():
        if current.get(name) in values:
            for simpler in values[: values.index(current[name])]:
                yield _with_choice(case, name, simpler)
    if case.cp_rank:
        yield replace(case, cp_rank=0)
    if case.seed:
        yield replace(case, seed=0)


def _towards(size: int, smaller: list[int]) -> list[int]:
    """The smallest value, then binary steps up to the one just below ``size``."""
    steps = []
    while smaller:
        steps.append(smaller[0])
        smaller = smaller[(len(smaller) + 1) // 2 :]
    return steps


def _less_packing(case: Case) -> Iterator[Case]:
    """Fewer sequences, then shorter ones, then less padding."""
    count = len(case.lengths)
    for size in (count // 2, 1) if count > 1 else ():
        for start in range(0, count, size):
            keep = [i for i in range(count) if not start <= i < start + size]
            if keep:
                yield _sequences(case, keep)
    unit = 1 if case.cp_size == 1 else 2 * case.cp_size
    for index, length in enumerate(case.lengths):
        for shorter in _towards(length, list(range(0, length, unit))):
            yield replace(case, lengths=_put(case.lengths, index, shorter))
    for index, gap in enumerate(case.gaps):
        if gap:
            yield replace(case, gaps=_put(case.gaps, index, 0))
    if case.tail > 1:
        yield replace(case, tail=1)


def _sequences(case: Case, keep: list[int]) -> Case:
    return replace(
        case,
        lengths=tuple(case.lengths[i] for i in keep),
        gaps=tuple(case.gaps[i] for i in keep),
    )


def _put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _with_choice(case: Case, name: str, value: Any) -> Case:
    """The case with one finite choice replaced; names as in :func:`finite_axes`."""
    group, _, key = name.partition(":")
    if group == "flag":
        return replace(case, flags={**case.flags, key: value})
    if group == "tile":
        return replace(case, tile={**case.tile, key: value})
    if group == "variant":
        return replace(case, variants={**case.variants, key: value})
    if group == "gaps":
        return replace(case, gaps=(0,) * len(case.gaps))
    if group == "tail":
        return replace(case, tail=0)
    if group == "cp_size":
        return replace(case, cp_size=value, cp_rank=0)
    if group == "spare_positions":
        return replace(case, axes={**case.axes, group: value})
    return replace(case, **{group: value})
