"""The properties a candidate must have, each a function from what was seen to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite

import torch

from .comparators import Mismatch, beyond, non_finite, same_bits, structure
from .effects import is_poison
from .evidence import Evidence, Lanes
from .guards import bits
from .inputs import all_on_host
from .locus import numbers, words
from .observe import describe_error
from .record import Finding
from .sharing import overlap, shared_outputs
from .strays import strays
from .watching import WRITES_OUTSIDE, memory_findings, shown


def runs(evidence: Evidence) -> Iterator[Finding]:
    """The candidate raises nothing on legal input."""
    if evidence.seen.error is not None:
        error, frame = describe_error(evidence.seen.error)
        phase = evidence.seen.phase
        shown = f"{type(evidence.seen.error).__name__} in {frame}: {evidence.seen.error}"
        yield Finding(
            "runs",
            phase,
            error,
            frame=frame,
            sentence=f"Expected {phase} to run on legal input but it raised {shown.strip(': ')}.",
        )


def returns_structure(evidence: Evidence) -> Iterator[Finding]:
    """Every output and gradient exists, with the reference's shape, dtype, device and strides."""
    for name, wanted in evidence.expected.reference.items():
        actual = evidence.seen.results.get(name)
        if actual is None:
            if evidence.seen.error is None:
                yield Finding(
                    "structure", name, "missing", sentence=f"Expected {name} but got none."
                )
            continue
        returned = evidence.seen.returned.get(name)
        mismatch = structure(
            actual=actual if returned is None else returned,
            expected=wanted
            if returned is None
            else torch.empty_strided(
                wanted.shape,
                wanted.stride(),
                dtype=wanted.dtype,
                device=evidence.seen.inputs.device,
            ),
            strides=returned is not None and _alias(evidence, name) is None,
        )
        if mismatch:
            yield Finding(
                "structure", name, mismatch.error, sentence=f"{name} {mismatch.sentence}."
            )


def _alias(evidence: Evidence, name: str) -> str | None:
    outputs = evidence.seen.inputs.spec.outputs
    return next((item.alias for item in outputs if item.name == name), None)


def aliases_as_promised(evidence: Evidence) -> Iterator[Finding]:
    """An output shares memory with the input the contract names, and with nothing else."""
    for name, tensor in evidence.seen.returned.items():
        alias = _alias(evidence, name)
        shared = _sharing(evidence, tensor)
        if tensor.numel() and shared != ([alias] if alias else []):
            yield Finding(
                "aliasing",
                name,
                f"shares {', '.join(shared) or 'nothing'}",
                sentence=f"Expected {name} to share memory with {alias or 'no input'} "
                f"but it shares with {', '.join(shared) or 'none'}.",
            )
    yield from shared_outputs(evidence.seen)


def _sharing(evidence: Evidence, tensor: torch.Tensor) -> list[str]:
    """The inputs that a tensor shares elements with, or lies among the guards of."""
    storage = tensor.untyped_storage().data_ptr()
    given = {
        name: item.tensor
        for name, item in evidence.seen.inputs.tensors.items()
        if item.buffer.untyped_storage().data_ptr() == storage
    }
    if len(given) > 1:
        return [name for name, other in given.items() if overlap(other, tensor)] or list(given)
    return list(given)


def writes_everything(evidence: Evidence) -> Iterator[Finding]:
    """No element of an output or gradient still holds the poison of its allocation."""
    if not any(bool(is_poison(joined.lanes.actual).any()) for joined in evidence.joined):
        return
    for name in evidence.comparable:
        left = is_poison(evidence.lanes(name).actual)
        if bool(left.any()):
            place = tuple(int(i) for i in left.nonzero()[0])
            yield Finding(
                "written",
                name,
                "never written",
                locus=_locus(evidence, name, left),
                sentence=f"Expected every element of {name} to be written but "
                f"{name}{list(place)} and {int(left.sum()) - 1} others never were."
                + _at(evidence, name, left)
                + shown(evidence.seen, ("left_unwritten",)),
            )


def agrees_with_oracle(evidence: Evidence) -> Iterator[Finding]:
    """Every element within its derived bound of the float64 oracle; copies keep their bits."""
    yield from _mismatches(evidence, "values", oracle_mismatch)


def _mismatches(
    evidence: Evidence, check: str, compare: Callable[[Lanes], Mismatch | None]
) -> Iterator[Finding]:
    """A finding for each result that has a mismatch, if they have any together."""
    if any(compare(joined.lanes) for joined in evidence.joined):
        for name in evidence.comparable:
            if mismatch := compare(evidence.lanes(name)):
                yield _value_finding(evidence, check, name, mismatch)


def oracle_mismatch(lanes: Lanes) -> Mismatch | None:
    """Where a result is not what the oracle allows."""
    actual, oracle = lanes.actual, lanes.oracle
    return (
        non_finite(actual=actual, expected=oracle)
        or beyond(share=lanes.share, actual=actual, expected=oracle)
        or same_bits(
            actual=actual,
            expected=oracle.to(actual.dtype),
            where=lanes.exact,
            signed_zero=lanes.sign_lost,
        )
    )


def headroom(evidence: Evidence) -> dict[str, float]:
    """The largest share of its bound that each tensor uses; infinite where it is NaN."""
    largest = {}
    for joined in evidence.joined:
        share = joined.lanes.share.nan_to_num(nan=torch.inf)
        for name, (start, end) in joined.places.items():
            largest[name] = float(share[start:end].max()) if start < end else 0.0
    return largest


def equals_reference(evidence: Evidence) -> Iterator[Finding]:
    """The reference's bits, where the contract promises them."""
    if evidence.seen.inputs.spec.bit_equal:
        yield from _mismatches(evidence, "reference_bits", reference_mismatch)


def reference_mismatch(lanes: Lanes) -> Mismatch | None:
    """Where a result has other bits than the reference's."""
    return same_bits(actual=lanes.actual, expected=lanes.reference)


def keeps_inputs(evidence: Evidence) -> Iterator[Finding]:
    """No input changes, unless the contract says that the op may write it."""
    inputs = evidence.seen.inputs
    mutable = {item.name for item in inputs.spec.inputs if item.mutable}
    for name, item in inputs.tensors.items():
        inside, _ = evidence.seen.changed(item)
        if len(inside) and name not in mutable:
            yield _unchanged("inputs_unchanged", name, len(inside))


def keeps_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Backward leaves what forward returned alone: the next op may still need it."""
    seen = evidence.seen
    for name, tensor in all_on_host(seen.returned, seen.inputs.device).items():
        differs = int((bits(tensor.contiguous()) != bits(seen.results[name])).sum())
        if differs:
            yield _unchanged("outputs_unchanged", name, differs)


def keeps_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Backward leaves its incoming gradient alone, which a second consumer may still read, unless
    the contract says that it may write it."""
    mutable = {item.name for item in evidence.seen.inputs.spec.outputs if item.gradient_mutable}
    for name, item in evidence.seen.gradients.items():
        inside, _ = evidence.seen.changed(item)
        if len(inside) and name not in mutable:
            yield _unchanged("gradients_unchanged", f"incoming gradient of {name}", len(inside))


def _unchanged(check: str, name: str, count: int) -> Finding:
    return Finding(
        check,
        name,
        "written",
        sentence=f"Expected {name} to stay as it was but {count} of its elements changed.",
    )


def stays_inside(evidence: Evidence) -> Iterator[Finding]:
    """Nothing outside a tensor is written: not before, not behind, not between its rows."""
    seen = evidence.seen
    reported = set()
    for phase, name, item, outside in strays(seen):
        if phase not in reported:
            reported.add(phase)
            yield Finding(
                "guards",
                phase,
                "written outside",
                sentence=f"Expected {phase} to write only inside its tensors but it wrote "
                f"{len(outside)} elements outside {name}, the first "
                f"{item.index(int(outside[0]))}." + shown(seen, WRITES_OUTSIDE, phase),
            )
    for phase, found in memory_findings(seen, WRITES_OUTSIDE):
        if phase not in reported:  # it wrote what was there already
            reported.add(phase)
            sentence = f"Expected {phase} to write only inside its tensors but {found.sentence}"
            yield Finding("guards", phase, "written outside", sentence=sentence)


Check = Callable[[Evidence], Iterator[Finding]]
CHECKS: dict[str, Check] = {
    "runs": runs,
    "structure": returns_structure,
    "aliasing": aliases_as_promised,
    "written": writes_everything,
    "values": agrees_with_oracle,
    "reference_bits": equals_reference,
    "inputs_unchanged": keeps_inputs,
    "outputs_unchanged": keeps_outputs,
    "gradients_unchanged": keeps_gradients,
    "guards": stays_inside,
}


def _value_finding(evidence: Evidence, check: str, name: str, mismatch: Mismatch) -> Finding:
    what = "the reference's bits" if check == "reference_bits" else "the float64 oracle"
    return Finding(
        check,
        name,
        "wrong values",
        band=_band(mismatch.ratio) if mismatch.error == "beyond bound" else mismatch.error,
        locus=_locus(evidence, name, mismatch.where),
        sentence=f"Expected {name}{list(mismatch.worst)} to agree with {what} but "
        f"{mismatch.sentence}: {_apart(evidence, name, mismatch)}."
        + _at(evidence, name, mismatch.where),
    )


def _apart(evidence: Evidence, name: str, mismatch: Mismatch) -> str:
    """How far the worst element is off, and how far it may be."""
    oracle = evidence.expected.oracle[name][mismatch.worst]
    actual = evidence.seen.results[name][mismatch.worst]
    if mismatch.error == "non-finite":
        return f"{_kind(float(actual))} where {_kind(float(oracle))} is right"
    lanes = evidence.lanes(name)
    step = float(lanes.step[mismatch.worst])
    off = f"{abs(float(actual) - float(oracle)) / step:.3g} ulp off"
    if mismatch.error == "bits":
        return f"{off}, where the bits must be the same"
    allowed = float(lanes.limit[mismatch.worst]) / step
    return f"{off}, bound {allowed:.3g} ulp" if allowed else f"{off}, where nothing may be off"


def _kind(value: float) -> str:
    return "a finite number" if isfinite(value) else str(value)


def _band(ratio: float) -> str:
    return "up to 4 bounds" if ratio < 4 else "up to 256 bounds" if ratio < 256 else "far off"


def _locus(evidence: Evidence, name: str, where: torch.Tensor) -> str:
    case, by_row = evidence.seen.inputs.case, evidence.by_row(name)
    return words(where, evidence.rotated(name), case, by_row=by_row)


def _at(evidence: Evidence, name: str, where: torch.Tensor) -> str:
    place = numbers(where, evidence.seen.inputs.case, by_row=evidence.by_row(name))
    return f" It is in {place}." if place else ""
