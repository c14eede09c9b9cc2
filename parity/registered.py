"""Operators registered with ``torch.library``: torch's own ``opcheck`` on a case."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from .evidence import Evidence
from .observe import call_arguments, candidate_function
from .oracle import data_names
from .record import Finding
from .spec import OpSpec
from .trial import again

REGISTERED = (OpOverload, OpOverloadPacket, CustomOpDef)


def registered(spec: OpSpec) -> bool:
    """Whether the candidate is an operator of torch and not a Python function."""
    return isinstance(candidate_function(spec.candidate), REGISTERED)


def opcheck(evidence: Evidence) -> Iterator[Finding]:
    """Schema, autograd registration, shapes under fake tensors and tracing are as registered."""
    inputs = again(evidence)
    operator: Any = candidate_function(inputs.spec.candidate)
    fed = {
        name: inputs.tensors[name].tensor.detach().requires_grad_() for name in data_names(inputs)
    }
    arguments = call_arguments(operator, inputs, fed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations while it traces
        results = torch.library.opcheck(operator, (), arguments, raise_exception=False)
    for test, outcome in results.items():
        if isinstance(outcome, Exception):
            lines = [line.strip() for line in str(outcome).splitlines() if line.strip()]
            yield Finding(
                "effect:opcheck",
                test,
                type(outcome).__name__,
                sentence=f"Expected opcheck's {test} to pass but it says: {' '.join(lines)[:300]}",
            )
