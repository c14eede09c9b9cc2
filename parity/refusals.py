"""Illegal calls that an op must refuse with ValueError: each a legal call with one thing broken.

Legal cases never hold such data by accident; here it is made on purpose.  Only what a host can see
without waiting for the device is asked for; the values of ``cu_seqlens`` and ``position_ids`` are
not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from random import Random

from .broken_calls import BREAKS, Arguments, Break
from .broken_values import BREAKS_OF_VALUES
from .evidence import Evidence
from .inputs import Inputs
from .observe import candidate_function, describe_error
from .record import Finding
from .spec import OpSpec, Unsupported
from .trial import again
from .watching import kept_inside


def refuses(evidence: Evidence) -> tuple[str, list[Finding]]:
    """Make the first illegal call, in an order drawn by the seed, that this case can break."""
    spec, case = evidence.seen.inputs.spec, evidence.seen.inputs.case
    breaks = _breaks(spec)
    if case.seed % spec.refuses_in:
        return "", []
    inputs = again(evidence)
    arguments: Arguments = {
        item.name: inputs.tensors[item.name].tensor if item.name in inputs.tensors else None
        for item in inputs.spec.inputs
    }
    arguments |= {**inputs.constants, **case.tile}
    for name in Random(f"refuses/{case.seed}").sample(list(breaks), len(breaks)):
        broken = breaks[name](inputs, arguments)
        if broken is not None:
            return _asked(inputs, name, arguments, broken)
    return "", []


def _asked(
    inputs: Inputs, name: str, legal: Arguments, broken: Arguments
) -> tuple[str, list[Finding]]:
    try:
        found = _accepted(inputs, name, legal) if name in BREAKS_OF_VALUES else []
        return f"refuses:{name}", found + _refused(inputs, name, broken)
    except Unsupported:
        return "", []  # a revision that lacks the argument has refused nothing


def _breaks(spec: OpSpec) -> dict[str, Break]:
    if unknown := sorted({*spec.refuses} - {*BREAKS}):
        raise ValueError(
            f"Expected refuses of op {spec.name!r} to name illegal calls among "
            f"{', '.join(BREAKS)} but got {unknown[0]!r}."
        )
    named = {name: BREAKS[name] for name in spec.refuses}
    return named | BREAKS_OF_VALUES if spec.validating else named


def _context(inputs: Inputs, name: str) -> AbstractContextManager[None]:
    """Where values are read, if that is what it takes to refuse the call."""
    switch = inputs.spec.validating
    if switch is None or name not in BREAKS_OF_VALUES:
        return nullcontext()
    return candidate_function(switch)()  # type: ignore[no-any-return]


def _accepted(inputs: Inputs, name: str, call: Arguments) -> list[Finding]:
    """The legal call, which must not be refused where values are read."""
    try:
        with _context(inputs, name):
            candidate_function(inputs.spec.candidate)(**call)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001  # a legal call may raise nothing
        raised = f"{type(error).__name__}: {error}"
        sentence = f"Expected a legal call to pass validation but it raised {raised}"
        return [Finding(f"refuses:{name}", "forward", "it refused a legal call", sentence=sentence)]
    return []


def _refused(inputs: Inputs, name: str, call: Arguments) -> list[Finding]:
    got = "it returned a result"
    try:
        with _context(inputs, name), kept_inside():
            candidate_function(inputs.spec.candidate)(**call)
    except ValueError:
        return []
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001  # every other exception is what the finding reports
        got = f"it raised {describe_error(error)[0]}"
    return [
        Finding(
            f"refuses:{name}",
            "forward",
            got,
            sentence=f"Expected a ValueError for {name.replace('_', ' ')} but {got}.",
        )
    ]
