"""Is a wrong value a matter of rounding?  A run in float32 tells: rounding shrinks with eps."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

import torch

from .bounds import unit_roundoff
from .evidence import Evidence
from .generate import is_legal
from .inputs import build_inputs
from .observe import observe
from .oracle import expect
from .record import Finding


def explained(evidence: Evidence, findings: list[Finding]) -> list[Finding]:
    """The findings; those of wrong values also say what a run in float32 shows, if there is one.

    A candidate that does anything worse is not run again: it might end the process, and what was
    found would be lost.
    """
    wrong = [finding for finding in findings if finding.check == "values"]
    harmless = {finding.check for finding in findings} <= {"values", "reference_bits"}
    wide = in_float32(evidence) if wrong and harmless else None
    if wide is None:
        return findings
    told = {finding.tensor: comparison(evidence, wide, finding.tensor) for finding in wrong}
    return [
        replace(finding, sentence=finding.sentence + told[finding.tensor])
        if finding in wrong
        else finding
        for finding in findings
    ]


def in_float32(evidence: Evidence) -> Evidence | None:
    """What the candidate does with the same case in float32; None where it cannot be asked."""
    inputs = evidence.seen.inputs
    spec, case = inputs.spec, replace(inputs.case, dtype="float32")
    if inputs.case.dtype == "float32" or is_legal(spec, case):
        return None
    try:
        seen = observe(build_inputs(spec, case, inputs.device), effects=False)
        expected = expect(seen.inputs)
    except Exception:  # noqa: BLE001 - whatever it is, the findings must not be lost over it
        return None
    return None if seen.error else Evidence(seen, expected, evidence.specified)


def comparison(narrow: Evidence, wide: Evidence, name: str) -> str:
    """A sentence that begins with a space, or nothing where the gaps cannot be compared.

    A gap that comes from roundings is a small multiple of eps, one that does not keeps its size;
    between a factor of 1 and that of eps the geometric mean decides.
    """
    if name not in wide.comparable:
        return ""
    before, after = gap(narrow, name), gap(wide, name)
    if not isfinite(before) or not isfinite(after) or not before or not after:
        return ""  # no gap at all: where both sides overflow any value is right
    dtypes = [evidence.seen.results[name].dtype for evidence in (narrow, wide)]
    eps = unit_roundoff(dtypes[0]) / unit_roundoff(dtypes[1])
    factor = before / after
    kind = "rounding" if factor >= eps**0.5 else "the algorithm, or a step of fixed precision"
    return f" In float32 it is {factor:.3g} times smaller, and eps {eps:.3g} times: {kind}."


def gap(evidence: Evidence, name: str) -> float:
    """The largest distance from the oracle, in units of the summed magnitude of the terms."""
    actual, oracle = evidence.lanes(name).actual.double(), evidence.lanes(name).oracle
    share = (actual - oracle).abs() / evidence.expected.magnitude[name]
    return float(torch.where(actual == oracle, 0.0, share).nan_to_num(nan=inf).max())
