"""The gradient of a gradient: right, or refused, but never silently without a term."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .bounds import smallest_subnormal, unit_roundoff
from .comparators import within
from .evidence import Evidence
from .inputs import Inputs, gradient_values, on_host
from .oracle import Tensors, absolute, differentiate, ones, run_reference, wide
from .record import Finding
from .rope_tables import Form
from .trial import REFUSALS, again, finding, incoming, poisoned, run


def double_backward(evidence: Evidence) -> Iterator[Finding]:
    """A backward of the backward is right or is refused; it never drops a term silently.

    The gradients are differentiated at the data as incoming gradients.  Where no gradient has a
    graph autograd refuses by itself; where some have one, the others would count as constants.
    """
    trial = run(again(evidence))
    sent = {n: g.requires_grad_() for n, g in incoming(trial.inputs, trial.outputs).items()}
    at = {name: item.tensor for name, item in again(evidence).tensors.items()}
    try:
        with poisoned():
            once = _once(trial.outputs, trial.leaves, sent)
        lost = [name for name, g in once.items() if g.numel() and not g.requires_grad]
        if lost and len(lost) < len(once):
            yield _dropped(lost[0])
            return
        with poisoned():
            _twice(once, at)
    except REFUSALS:
        return
    expected, limit = _second_order(evidence)
    for name, source in sent.items():
        actual = on_host(torch.zeros_like(source) if source.grad is None else source.grad)
        settled = [evidence.settled(name, tensor) for tensor in (actual, expected[name])]
        if mismatch := within(actual=settled[0], expected=settled[1], limit=limit[name]):
            phrase = "get the right gradient through the gradients"
            yield finding("double_backward", name, "double backward wrong", phrase, mismatch)


def _once(outputs: Tensors, leaves: Tensors, sent: Tensors) -> Tensors:
    """The gradients of the leaves that exist, as functions of what was sent."""
    return differentiate(outputs, leaves, sent, create_graph=True)


def _twice(once: Tensors, at: Tensors) -> None:
    """Differentiate gradients, into ``.grad`` of what was sent.

    Not by ``grad()``: it runs only what leads to the tensors asked for, and so passes over a node
    that refuses.
    """
    torch.autograd.backward(list(once.values()), [at[name] for name in once])


def _second_order(evidence: Evidence) -> tuple[Tensors, Tensors]:
    """What differentiating the gradients must give, in float64, and its limit.

    The limit is 4 n u M with u of the dtype of storage, n terms and their sum of magnitudes M: a
    term is rounded at most twice in each of the two backwards, and so is each partial sum.
    """
    inputs = evidence.seen.inputs
    value = _reference(inputs, wide, magnitude=False)
    magnitude = _reference(inputs, absolute, magnitude=True)
    counted = _reference(inputs, ones, magnitude=True)
    limit = {}
    for name, result in evidence.seen.results.items():
        if name in value:
            terms = counted[name].ceil().clamp(min=inputs.spec.terms or 1)
            each = unit_roundoff(result.dtype) * magnitude[name] + smallest_subnormal(result.dtype)
            limit[name] = 4 * terms * each
    return value, limit


def _reference(inputs: Inputs, form: Form, *, magnitude: bool) -> Tensors:
    """The reference differentiated twice in float64, by output name."""
    tensors = inputs.values(form)
    modes = {"compute_dtype": torch.float64, "magnitude": magnitude}
    leaves, outputs = run_reference(inputs, tensors, modes)
    sent = {
        name: form(gradient_values(inputs, name, t.shape, t.dtype))
        .detach()
        .clone()
        .requires_grad_()
        for name, t in outputs.items()
    }
    once = _once(outputs, leaves, sent)
    _twice(once, {name: tensors[name] for name in once})
    return {
        name: torch.zeros_like(g) if g.grad is None else g.grad.detach() for name, g in sent.items()
    }


def _dropped(name: str) -> Finding:
    sentence = (
        f"Expected {name}.grad to have a graph as other gradients of the op do, or all of them to "
        "refuse it, but it has none, so that it silently counts as a constant; mark the backward "
        "once_differentiable."
    )
    return Finding("effect:double_backward", f"{name}.grad", "graph dropped", sentence=sentence)
