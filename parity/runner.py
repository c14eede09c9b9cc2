"""One case through one candidate: observe, work out what was expected, check, record."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from .behaviour import behaves
from .case import Case
from .checks import CHECKS, headroom
from .cost import cost
from .evidence import Evidence
from .generate import is_legal
from .guards import HOST, tensor_bytes
from .inputs import Inputs, build_inputs, rows_in_sequences
from .memory import CHECKS as MEMORY_CHECKS
from .memory import hazards, not_run
from .observe import observe, own_place
from .oracle import Expectation, expect
from .pictures import mismatch_maps, ulp_histograms
from .precision import explained
from .record import Finding, Record
from .refusals import refuses
from .relations import relates
from .sharing import shared_gradients
from .spec import OpSpec, Unsupported
from .trial import keeps_lent
from .tuning import chosen_by
from .watching import everything_watched, moved

# Checks that call the candidate again, and one of what all of them left.  Each picks one variation
# by the seed of the case, which shrinking keeps, and returns its name (empty if none applies); they
# wait for a clean first run.
EXTRAS: tuple[Callable[[Evidence], tuple[str, list[Finding]]], ...] = (
    refuses,
    relates,
    behaves,
    keeps_lent,
)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread within this context, as it used as many as before afterwards.

    Tensors of a case are so small that handing their work to other threads takes longer than the
    work, and every worker of a run would wake as many threads as the machine has cores.  Only
    where a case or a mutant is judged: other tests and the user's own code keep their threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_case(spec: OpSpec, case: Case, arm: str = "head") -> Record:
    """Run ``case`` in this process and judge it by the contract ``spec``.

    The candidate runs first, on memory nobody else uses; the expectation is worked out afterwards
    from the inputs as they were.  Raises ValueError if the contract forbids the case.
    """
    with one_thread(), chosen_by(case.seed):
        return _run_case(spec, case, arm)


def _run_case(spec: OpSpec, case: Case, arm: str) -> Record:
    if reason := is_legal(spec, case):
        raise ValueError(f"{reason} Draw a case that op {spec.name!r} allows.")
    inputs = build_inputs(spec, case, device())
    digest = inputs.digest()
    try:
        seen = observe(inputs)
    except Unsupported as limitation:
        return Record(case.id, spec.name, arm, "unsupported", inputs=digest, reason=str(limitation))
    expected = _expected(inputs)
    evidence = Evidence(seen, expected, _specified_rows(inputs))
    applied = CHECKS | (MEMORY_CHECKS if everything_watched(seen) else {})
    findings = [finding for check in applied.values() for finding in check(evidence)]
    findings = explained(evidence, findings)
    checks = list(applied)
    for extra in () if findings else EXTRAS:
        name, found = extra(evidence)
        checks += [name] if name else []
        findings += found
    return Record(
        case.id,
        spec.name,
        arm,
        "failed" if findings else "passed",
        findings=tuple(findings),
        checks=tuple(checks),
        digests=_digests(evidence),
        headroom=headroom(evidence),
        inputs=digest,
        expected=_digest_of(expected.oracle),
        ulps=ulp_histograms(evidence),
        maps=mismatch_maps(evidence, findings),
        hazards=(*hazards(seen, findings), *shared_gradients(seen)),
        cost=cost(seen),
        traffic=moved(seen),
        not_run=not_run(seen),
    )


def _expected(inputs: Inputs) -> Expectation:
    spec = inputs.spec
    try:
        return expect(inputs)
    except Exception as error:  # noqa: BLE001 - whatever it raises, the contract is not judged
        place = own_place(error)
        raise ValueError(
            f"Expected the reference {spec.reference!r} to run on a legal case but it raised "
            f"{type(error).__name__}{f' at {place}' if place else ''}: {str(error).rstrip('.')}; "
            f"mend it, or the contract of {spec.name!r}."
        ) from None


def _digest_of(oracle: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of an oracle, rounded so that the order of float64 operations does not show."""
    total = hashlib.sha256()
    for name, tensor in oracle.items():
        total.update(name.encode() + tensor_bytes(tensor.float()))
    return total.hexdigest()


def _digests(evidence: Evidence) -> dict[str, str]:
    """SHA-256 of every result, over the elements that have one right value.  A NaN counts as one,
    whatever its payload: every tier makes its own."""
    digests = {
        name: _digest(_one_nan(tensor))
        for name, tensor in evidence.seen.results.items()
        if name not in evidence.comparable
    }
    for joined in evidence.joined:
        row = _one_nan(joined.lanes.actual)
        digests |= {name: _digest(row[start:end]) for name, (start, end) in joined.places.items()}
    return digests


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def _one_nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.masked_fill(tensor.isnan(), torch.nan) if tensor.is_floating_point() else tensor


def device() -> torch.device:
    """Where cases run: the current GPU if there is one and Triton compiles, else the CPU."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or not torch.cuda.is_available():
        return HOST
    return torch.device("cuda", torch.cuda.current_device())


def _specified_rows(inputs: Inputs) -> torch.Tensor | None:
    """Rows whose content the contract defines, bool [tokens]; None when it defines them all."""
    case = inputs.case
    if case.layout != "thd" or inputs.spec.pad_rows != "unspecified":
        return None
    return rows_in_sequences(case)
