"""Illegal calls that an op must refuse with ValueError: each a legal call with one thing broken.

Legal cases never hold such data by accident; here it is made on purpose.  Only what a host can see
without waiting for the device is asked for; the values of ``cu_seqlens`` and ``position_ids`` are
not.
"""

from __future__ import annotations

from .broken_calls import BREAKS, Arguments
from .checks import Evidence
from .inputs import Inputs, build_inputs
from .observe import candidate_function, describe_error
from .record import Finding
from .spec import Unsupported


def refuses(evidence: Evidence) -> tuple[str, list[Finding]]:
    """Make one illegal call of those that the contract lists and this case can break."""
    case = evidence.seen.inputs.case
    inputs = build_inputs(evidence.seen.inputs.spec, case, evidence.seen.inputs.device)
    arguments: Arguments = {
        item.name: inputs.tensors[item.name].tensor if item.name in inputs.tensors else None
        for item in inputs.spec.inputs
    }
    arguments |= {**inputs.constants, **case.tile}
    broken = {name: BREAKS[name](inputs, arguments) for name in inputs.spec.refuses}
    applicable = [name for name, call in broken.items() if call is not None]
    if not applicable:
        return "", []
    name = applicable[case.seed % len(applicable)]
    try:
        return f"refuses:{name}", _refused(inputs, name, broken[name] or {})
    except Unsupported:
        return "", []  # a revision that lacks the argument has refused nothing


def _refused(inputs: Inputs, name: str, call: Arguments) -> list[Finding]:
    got = "it returned a result"
    try:
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
