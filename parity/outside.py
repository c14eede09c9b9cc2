"""Positions that the tables do not have: their rows must show it, and no others may change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nan

from .case import Case
from .comparators import structure
from .contents import TABLES, packing
from .evidence import Evidence
from .inputs import Inputs, all_on_host, dims, on_host
from .record import Finding
from .relations.derived import agreement
from .spec import OpSpec
from .trial import again, finding, gradients, run


def positions_outside(evidence: Evidence) -> Iterator[Finding]:
    """Rows of a position before or past the tables are NaN where they are rotated.

    The tables are cut to the rows between the first and the last that the case uses, and positions
    count from there.  What was cut off still lies beside them: an op that reads it finds numbers.
    """
    inputs = again(evidence)
    (ids,) = (inputs.tensors[i.name].tensor for i in inputs.spec.inputs if i.kind == "position_ids")
    first, last = int(ids.min()), int(ids.max())
    trial = run(_cut(inputs, first + 1, last))
    found = all_on_host(trial.outputs, inputs.device) | gradients(trial)
    outside = on_host((ids == first) | (ids == last))
    for name in evidence.comparable:
        wanted = evidence.seen.results[name]
        rotated = evidence.expected.terms[name] > 1
        rows = outside.view(-1, *[1] * (wanted.dim() - 1))
        wanted = wanted.masked_fill(rows & rotated, nan)
        mismatch = structure(actual=found[name], expected=wanted, strides=False)
        settled = (evidence.settled(name, tensor) for tensor in (found[name], wanted))
        if mismatch := mismatch or agreement(evidence, name, *settled):
            phrase = "be NaN where its position is outside the tables, and the same elsewhere"
            yield finding("positions_outside", name, "differs", phrase, mismatch)


def _cut(inputs: Inputs, first: int, end: int) -> Inputs:
    """The same call with rows ``first`` to ``end`` of the tables alone, as views of them."""

    def changed(kind: str, tensor: Tensor) -> Tensor:
        if kind == "position_ids":
            return tensor - first
        return tensor[first:end] if kind in TABLES else tensor

    kinds = {item.name: item.kind for item in inputs.spec.inputs}
    tensors = {
        name: replace(item, tensor=changed(kinds[name], item.tensor))
        for name, item in inputs.tensors.items()
    }
    return replace(inputs, tensors=tensors)


def cuttable(spec: OpSpec, case: Case) -> bool:
    """Whether the contract says what such a row holds, and a table is left between two of them."""
    ids = packing("position_ids", case, dims(case)) if spec.has("position_ids") else None
    return spec.outside == "nan" and ids is not None and int(ids.max() - ids.min()) > 1
