"""A further run of the candidate on fresh inputs of the same case, with the graph at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .comparators import Mismatch
from .effects import Allocations
from .evidence import Evidence
from .guards import all_alike
from .inputs import Inputs, all_on_host, incoming_gradient
from .observe import call_arguments, candidate_function, feed, new_leaves
from .oracle import Tensors, by_output, differentiate
from .record import Finding

REFUSALS = (RuntimeError, ValueError)  # what autograd and ops raise
Feed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Trial:
    """One forward: ``leaves`` are where gradients arrive, by input name."""

    inputs: Inputs
    leaves: Tensors
    outputs: Tensors


def again(evidence: Evidence) -> Inputs:
    """The inputs of the case afresh, as they were before the candidate ran."""
    return evidence.seen.inputs.afresh(evidence.seen.lend())


def keeps_lent(evidence: Evidence) -> tuple[str, list[Finding]]:
    """No further run changed what it was lent; the check of the first run asks the same."""
    lent = [item for items in evidence.seen.lent.values() for item in items.values()]
    if not lent or all_alike([(item.before, item.buffer) for item in lent]):
        return "", []
    written = [item.name for item in lent if any(len(part) for part in item.changed())]
    phrase = "to stay as it was but a further run on the same tensors changed it."
    return "", [
        Finding("inputs_unchanged", name, "written later", sentence=f"Expected {name} {phrase}")
        for name in written
    ]


def run(
    inputs: Inputs, feeding: Feed = feed, before_call: Callable[[], object] = lambda: None
) -> Trial:
    """Run forward; ``feeding`` makes the tensor handed to the op from a leaf and the data."""
    leaves = new_leaves(inputs)
    fed = {name: feeding(leaf, inputs.tensors[name].tensor) for name, leaf in leaves.items()}
    before_call()
    return Trial(inputs, leaves, call(inputs, fed))


def poisoned() -> Allocations:
    """Context in which fresh memory is poison: an allocator hands out what the first run freed,
    which holds the right answer."""
    return Allocations("further run", [])


def call(inputs: Inputs, fed: Tensors) -> Tensors:
    """The outputs of the candidate, its data tensors given as ``fed``."""
    candidate = candidate_function(inputs.spec.candidate)
    arguments = call_arguments(candidate, inputs, fed)
    with poisoned():
        return by_output(inputs, candidate(**arguments))


def incoming(inputs: Inputs, outputs: Tensors) -> Tensors:
    """The incoming gradients of the case, in fresh memory."""
    return {
        name: incoming_gradient(inputs, name, output.shape, output.dtype).tensor
        for name, output in outputs.items()
    }


def gradients(trial: Trial, **options: Any) -> Tensors:
    """Copies on the host of the gradients that exist, as ``<input>.grad``."""
    outputs = {name: output for name, output in trial.outputs.items() if output.requires_grad}
    arriving = incoming(trial.inputs, outputs)
    with poisoned():
        found = differentiate(outputs, trial.leaves, arriving, **options)
    named = {f"{name}.grad": gradient for name, gradient in found.items()}
    return all_on_host(named, trial.inputs.device)


def finding(rule: str, name: str, error: str, phrase: str, mismatch: Mismatch) -> Finding:
    """What a rule found on a tensor; ``phrase`` ends "Expected the tensor to"."""
    where = f"{name}{list(mismatch.worst)}" if mismatch.worst else name
    sentence = f"Expected {where} to {phrase} but it {mismatch.sentence}."
    return Finding(f"effect:{rule}", name, error, sentence=sentence)
