"""Forward, then inverse: what comes back, and how far from the start it may be.

The first call stores y = R x + e1 with ``|e1|`` within its bound b1; the second stores R' y + e2
with ``|e2|`` within its bound b2 at the stored y.  With equal halves R' R x = (cos^2 + sin^2) x, so
what comes back is off from x by at most::

    |cos| b1_left + |sin| b1_right + b2 + |cos^2 + sin^2 - 1| |x|

The last term is there because a table in low precision is not of unit length; it takes the table
row that is furthest off, which bounds every row and does not ask the reference for positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..case import Case
from ..comparators import Mismatch, non_finite, same_bits, within
from ..evidence import Evidence
from ..inputs import Inputs
from ..oracle import Tensors, data_names, expect, resolve_function
from ..record import Finding
from ..spec import OpSpec
from .derived import Derived, dense, original_values, raised


def inverse_undoes(spec: OpSpec, case: Case) -> list[Derived]:
    """Forward, then inverse, gives the input back; both read and write pairs, so that the second
    call reads the layout that the first wrote."""
    flagged = {"inverse", "remove_interleaving"} <= set(spec.flags) and len(spec.outputs) == 1
    flagged = flagged and spec.has("cos") and spec.has("sin")
    finite = case.variants["values"] not in ("nan_lane", "inf_lane")
    if not (flagged and finite and case.halves == "equal"):
        return []
    flags = {**case.flags, "remove_interleaving": True}
    return [
        Derived(spec, dense(spec, case, flags={**flags, "inverse": inverse}))
        for inverse in (False, True)
    ]


def undoes(check: str, phrase: str, evidence: Evidence, derived: list[Derived]) -> list[Finding]:
    """Run forward, then inverse on what came out; what does not come back within its bound."""
    first, second = derived
    output = first.spec.outputs[0].name
    values = original_values(evidence)
    forward = first.run(values, evidence.seen)
    if findings := raised(check, forward):
        return findings
    stored = values | _parted(forward.results[output], values, data_names(forward.inputs))
    back = second.run(stored, evidence.seen)
    if findings := raised(check, back):
        return findings
    there = Evidence(forward, expect(forward.inputs), evidence.specified)
    again = Evidence(back, expect(back.inputs), evidence.specified)
    start = torch.cat([values[name] for name in data_names(back.inputs)], dim=-1)
    limit = _limit(back.inputs, there, again, output, start)
    if mismatch := _mismatch(again, output, start, limit):
        place = f"{output}{list(mismatch.worst)}"
        sentence = f"Expected {place} to come back {phrase} ({check}) but it {mismatch.sentence}."
        return [Finding(check, output, "differs", sentence=sentence)]
    return []


def _parted(output: Tensor, values: Tensors, names: list[str]) -> Tensors:
    """The lanes of an output as the data inputs they came from."""
    parts = output.split([values[name].shape[-1] for name in names], dim=-1)
    return dict(zip(names, parts, strict=True))


def _limit(inputs: Inputs, there: Evidence, again: Evidence, output: str, start: Tensor) -> Tensor:
    """The bound of the module's docstring, float64, in the shape of the output."""
    tensors = inputs.values()
    wide = {name: t.double().abs() for name, t in tensors.items() if t.is_floating_point()}
    errors = _parted(there.lanes(output).limit, wide, data_names(inputs))
    absent = {item.name: None for item in inputs.spec.inputs}
    given = {**absent, **tensors, **wide, **errors, **inputs.constants}
    reference = resolve_function(inputs.spec.reference)
    carried: Tensor = reference(**given, compute_dtype=torch.float64, magnitude=True)
    cos, sin = (_table(inputs, kind).double() for kind in ("cos", "sin"))
    longest = (cos**2 + sin**2 - 1).abs().max()
    return again.lanes(output).limit + carried + longest * start.double().abs()


def _table(inputs: Inputs, kind: str) -> Tensor:
    name = next(item.name for item in inputs.spec.inputs if item.kind == kind)
    return inputs.values()[name]


def _mismatch(again: Evidence, output: str, start: Tensor, limit: Tensor) -> Mismatch | None:
    actual = again.lanes(output).actual
    expected = again.settled(output, start)
    copied = again.expected.terms[output] <= 1
    return (
        non_finite(actual=actual, expected=expected)
        or within(actual=actual, expected=expected.double(), limit=limit)
        or same_bits(actual=actual, expected=expected, where=copied, signed_zero=copied)
    )
