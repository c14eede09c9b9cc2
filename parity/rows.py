"""Which results of an op begin with the rows of a case, and which are about all rows together.

The contract says so of a gradient, whose shape is its input's.  Of an output the reference tells,
by what it returns for another number of rows: in a single case sizes may be equal by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

import torch

from .case import Case
from .guards import HOST
from .inputs import Inputs, begins_with, build_inputs, dims, shape_of
from .oracle import run_reference
from .spec import OpSpec

Shapes = Mapping[str, torch.Size]


def by_row(inputs: Inputs, name: str, shape: torch.Size) -> bool:
    """Whether the result ``name``, which has this shape, begins with the rows."""
    shapes = {f"{item.name}.grad": item.shape for item in inputs.spec.inputs}
    if name in shapes:
        return begins_with(shapes[name], "rows", inputs.case.layout)
    return output_begins(inputs, name, shape, "rows")


def output_begins(inputs: Inputs, name: str, shape: torch.Size, words: str) -> bool:
    """Whether an output, which has this shape, begins with the axes ``words``."""

    def begins(found: torch.Size, sizes: Mapping[str, int]) -> bool:
        axes = shape_of(words, inputs.case.layout, sizes)
        return found[: len(axes)] == axes

    sizes, shapes = _elsewhere(inputs)
    return begins(shape, inputs.axes) and (name not in shapes or begins(shapes[name], sizes))


def _elsewhere(inputs: Inputs) -> tuple[Mapping[str, int], Shapes]:
    """The sizes of another case and the shapes of its outputs, the same for all that share flags;
    no shapes where the reference refuses it."""
    spec, case = inputs.spec, inputs.case
    key = (spec, case.layout, str(sorted(case.flags.items())))
    if key not in _KNOWN:
        other = build_inputs(spec, _other(spec, case), HOST)
        try:
            _, outputs = run_reference(other, other.values(), {})
        except Exception:  # noqa: BLE001 - planned cases tell what is wrong with a reference
            outputs = {}
        _KNOWN[key] = other.axes, {name: tensor.shape for name, tensor in outputs.items()}
    return _KNOWN[key]


_KNOWN: dict[tuple[OpSpec, str, str], tuple[Mapping[str, int], Shapes]] = {}


def _other(spec: OpSpec, case: Case) -> Case:
    """The case with another number of heads, if there is one, and with sizes of rows that no other
    axis has."""
    axes = dict(case.axes)
    heads = [size for size in spec.axes.get("heads", ()) if size != axes["heads"]]
    axes |= {"heads": heads[0]} if heads else {}
    if case.layout != "thd":
        for name in ("tokens",) if case.layout == "plain" else ("seq", "batch"):
            axes[name] = next(size for size in count(2) if size not in axes.values())
        return replace(case, axes=axes)
    rows = dims(case)["tokens"]  # of every rank
    more = next(more for more in count(2, 2) if rows + more not in axes.values())
    lengths = (*case.lengths, more * case.cp_size)
    return replace(case, axes=axes, lengths=lengths, gaps=(*case.gaps, 0))
