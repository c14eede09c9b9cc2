"""A case derived from another one, and how its results must map onto the other's.

The map is given as functions of one tensor, which work on values and on indices alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..bounds import must_keep_bits
from ..case import Case
from ..comparators import Mismatch, non_finite, same_bits, structure, within
from ..contents import TABLES
from ..evidence import Evidence
from ..generate import is_legal
from ..guards import alike
from ..inputs import Inputs, begins_with, build_inputs, gradient_values
from ..observe import Observation, describe_error, observe
from ..oracle import Tensors
from ..record import Finding
from ..rows import output_begins
from ..spec import OpSpec

Select = Callable[[Tensor], Tensor]
AXES = {"all": "", "rows": "rows", "heads": "rows heads"}


def whole(tensor: Tensor) -> Tensor:
    """All of it, as it is."""
    return tensor


@dataclass(frozen=True)
class Derived:
    """A case that must give results which map onto those of the case it comes from.

    ``across`` says which tensors take part: those that have ``rows``, those that have ``heads``
    too, or ``all``.  ``change`` makes the derived values of such an input or incoming gradient from
    the original's, ``table`` those of cos and sin; everything else is handed on as it was.
    ``theirs`` picks from a derived result what must equal the part ``ours`` of the original one.
    """

    spec: OpSpec
    case: Case
    across: str = "all"
    change: Select = whole
    table: Select = whole
    ours: Select = whole
    theirs: Select = whole

    def legal(self) -> bool:
        """Whether the contract allows the case, and its tensors can hold values of any kind."""
        held = [self.case.variants.get(name, "") for name in _shaped(self.spec)]
        expanded = self.change is not whole and any(v.startswith("expanded") for v in held)
        return not expanded and not is_legal(self.spec, self.case)

    def fits(self, original: Observation) -> bool:
        """Whether every output begins with the axes that the relation is about."""
        words, returned = AXES[self.across], original.returned.items()
        return not words or all(
            output_begins(original.inputs, name, tensor.shape, words) for name, tensor in returned
        )

    def names(self) -> list[str]:
        """The results that are compared."""
        exempt = {*self.spec.sums, *self.spec.rounded_sums} if self.across == "heads" else set()
        outputs = [item.name for item in self.spec.outputs]
        gradients = [f"{i.name}.grad" for i in self.spec.inputs if i.kind == "data"]
        return [
            name
            for name in (*outputs, *gradients)
            if name in outputs or (name not in exempt and self._takes_part(name[: -len(".grad")]))
        ]

    def run(self, values: Tensors, original: Observation) -> Observation:
        """Run the candidate on the derived case, in fresh guarded memory."""
        return observe(self.inputs(values, original), effects=False)

    def inputs(self, values: Tensors, original: Observation) -> Inputs:
        """The derived inputs; ``values`` are those of the original case by name."""
        given = {name: self._changed(name, value) for name, value in values.items()}
        same = {name for name in self._tables() if given[name] is values[name]}
        given = {name: value for name, value in given.items() if name not in same}
        # which makes such tables itself
        return build_inputs(self.spec, self.case, original.inputs.device, given, original.lend())

    def _tables(self) -> list[str]:
        return [item.name for item in self.spec.inputs if item.kind in TABLES]

    def _changed(self, name: str, value: Tensor) -> Tensor:
        if name in self._tables():
            by_row = self.across == "rows" and self._takes_part(name)
            return self.change(value) if by_row else self.table(value)
        gradient = name not in {item.name for item in self.spec.inputs}
        return self.change(value) if gradient or self._takes_part(name) else value

    def _takes_part(self, name: str) -> bool:
        """Whether an input has the axes that the relation is about."""
        item = next(item for item in self.spec.inputs if item.name == name)
        shape = "rows" if item.kind == "position_ids" else item.shape
        return begins_with(shape, AXES[self.across], self.case.layout)


def dense(spec: OpSpec, case: Case, **changes: Any) -> Case:
    """The case with every tensor in its simplest memory layout and in a storage of its own, and
    with other fields changed."""
    return replace(case, variants={**case.variants, **_simplest(spec)}, **changes)


def _simplest(spec: OpSpec) -> dict[str, str]:
    apart = {"storage": "apart"} if spec.shares_storage else {}
    return apart | {name: options[0] for name, options in _shaped(spec).items()}


def _shaped(spec: OpSpec) -> dict[str, tuple[str, ...]]:
    """The memory layouts of every tensor that has a choice of them."""
    tensors = {item.name: item.strides for item in spec.inputs if item.shape}
    return tensors | {f"{item.name}.grad": spec.gradients for item in spec.outputs}


def restrided(spec: OpSpec, case: Case) -> Case:
    """The dense case, or where it is dense already one with strides, and in shared storage."""
    if dense(spec, case) != case:
        return dense(spec, case)
    strided = {
        name: [option for option in options if not option.startswith("expanded")][-1:]
        for name, options in _shaped(spec).items()
    }
    chosen = {name: options[0] for name, options in strided.items() if options}
    chosen |= {"storage": "shared"} if spec.shares_storage else {}
    return replace(case, variants={**case.variants, **chosen})


def original_values(evidence: Evidence) -> Tensors:
    """What the original case was given, on the host, to be read only.

    Inputs by name, each incoming gradient as ``<output>.grad``; ``cu_seqlens`` is left out, since
    it follows from the lengths.
    """
    seen = evidence.seen
    spec = seen.inputs.spec
    follows = {item.name for item in spec.inputs if item.kind.startswith("cu_seqlens")}
    values = {name: t for name, t in seen.inputs.values().items() if name not in follows}
    for name in (item.name for item in spec.outputs):
        output = evidence.expected.reference[name]
        values[f"{name}.grad"] = gradient_values(seen.inputs, name, output.shape, output.dtype)
    return values


def raised(check: str, seen: Observation) -> list[Finding]:
    """The finding for a derived run that raised, if it did."""
    if seen.error is None:
        return []
    error, frame = describe_error(seen.error)
    sentence = (
        f"Expected the case derived by {check} to run {seen.phase} but it raised "
        f"{type(seen.error).__name__}: {seen.error}"
    )
    return [Finding(check, seen.phase, error, frame=frame, sentence=sentence.rstrip(".") + ".")]


def holds(check: str, phrase: str, evidence: Evidence, derived: list[Derived]) -> list[Finding]:
    """Run the derived cases until one of them does not map onto the original; what differs."""
    values = original_values(evidence)
    for case in derived:
        seen = case.run(values, evidence.seen)
        findings = raised(check, seen)
        for name in case.names() if not findings else ():
            if mismatch := _mismatch(evidence, case, name, seen.results.get(name)):
                findings.append(_finding(check, phrase, name, mismatch))
        if findings:
            return findings
    return []


def _finding(check: str, phrase: str, name: str, mismatch: Mismatch) -> Finding:
    error = "structure" if mismatch.error in ("shape", "dtype", "device") else "differs"
    where = f"{name}{list(mismatch.worst)}" if mismatch.worst else name
    sentence = f"Expected {where} to be the same {phrase} ({check}) but it {mismatch.sentence}."
    return Finding(check, name, error, sentence=sentence)


def _mismatch(
    evidence: Evidence, derived: Derived, name: str, result: Tensor | None
) -> Mismatch | None:
    """How the derived ``result`` differs, in the original's frame of indices."""
    original = evidence.seen.results[name]
    if result is None:
        return Mismatch("shape", "is missing from the derived run")
    found, wanted = derived.theirs(result), derived.ours(original)
    if mismatch := structure(actual=found, expected=wanted, strides=False):
        return mismatch
    if alike(found, wanted):
        return None
    if derived.ours is not whole:
        places = derived.ours(torch.arange(original.numel()).view_as(original))
        mapped = original.flatten().clone()
        mapped[places.flatten()] = found.flatten()
        found = mapped.view(original.shape)
    return agreement(evidence, name, evidence.settled(name, found), evidence.lanes(name).actual)


def agreement(evidence: Evidence, name: str, actual: Tensor, expected: Tensor) -> Mismatch | None:
    """How two runs of result ``name`` differ: bit for bit where the contract promises the
    reference's bits, elsewhere within two limits.

    Both sides have one exact result and one M, so each may be off by the same limit and the two
    from each other by twice that.
    """
    terms = evidence.expected.terms[name]
    if evidence.seen.inputs.spec.bit_equal:
        signed = (terms <= 1) & evidence.keeps_sign[name]
        return same_bits(actual=actual, expected=expected, signed_zero=signed)
    exact = must_keep_bits(actual.dtype, oracle=evidence.expected.oracle[name], terms=terms)
    signed = exact & evidence.keeps_sign[name]
    return (
        non_finite(actual=actual, expected=expected)
        or within(actual=actual, expected=expected, limit=2 * evidence.lanes(name).limit)
        or same_bits(actual=actual, expected=expected, where=exact, signed_zero=signed)
    )
