"""What a case must give: the reference's value, the float64 oracle, magnitudes and term counts.

The ops are linear in their data, y = A x, so one reference gives all four: on the inputs as they
are, on the same inputs in float64, on absolute inputs with every minus a plus (|A| |x|, the
magnitude M), and on ones (the number of terms of each lane).  Autograd of each gives the same for
the gradients, with A transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from .inputs import Inputs, gradient_values
from .rope_tables import Form

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Expectation:
    """Outputs and gradients by name, four times; gradients are named ``<input>.grad``."""

    reference: Tensors
    oracle: Tensors
    magnitude: Tensors
    terms: Tensors


def resolve_function(path: str) -> Callable[..., Any]:
    """The function at ``"package.module:function"``; raises ValueError if there is none."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"Expected a function at {path!r} but got {type(error).__name__}: {error}; "
            "check the name and the import root."
        ) from error


def expect(inputs: Inputs) -> Expectation:
    """Run the reference four times, on the host, on the inputs as they were at the start."""
    narrow = inputs.values()
    leaves, outputs = run_reference(inputs, narrow, {})
    gradients = _sent(inputs, outputs)
    expected = Expectation(
        reference=_backward(leaves, outputs, gradients),
        oracle=_in_float64(inputs, gradients, wide),
        magnitude=_in_float64(inputs, gradients, absolute, magnitude=True),
        terms=_terms(inputs, _in_float64(inputs, gradients, ones, magnitude=True)),
    )
    path = (inputs.spec.reference, inputs.case.layout)
    if path not in _PRECISE and _is_precise(expected, _in_float64(inputs, gradients, nudged)):
        _PRECISE.add(path)
    return expected


def keeps_sign(inputs: Inputs, expected: Expectation) -> Tensors:
    """Where the sign of a zero is decided, bool by name: where the reference makes -0 out of -0.

    It does so in a copy, and not where it negates, sums or multiplies two inputs: for -0 in,
    ``-x`` and ``0 + x`` and ``x * y`` are +0.
    """
    outputs = {item.name: expected.reference[item.name] for item in inputs.spec.outputs}
    found = _in_float64(inputs, _sent(inputs, outputs), minus_zeros)
    return {name: (tensor == 0) & tensor.signbit() for name, tensor in found.items()}


def _sent(inputs: Inputs, outputs: Tensors) -> Tensors:
    """The incoming gradients of outputs, on the host, to be read only."""
    return {
        name: gradient_values(inputs, name, tensor.shape, tensor.dtype)
        for name, tensor in outputs.items()
    }


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64."""
    return tensor.double()


def absolute(tensor: torch.Tensor) -> torch.Tensor:
    """The sizes of its numbers, in float64."""
    return tensor.double().abs()


def ones(tensor: torch.Tensor) -> torch.Tensor:
    """Ones of its shape, in float64."""
    return torch.ones_like(tensor, dtype=torch.float64)


def minus_zeros(tensor: torch.Tensor) -> torch.Tensor:
    """-0 throughout, of its shape, in float64."""
    return torch.full_like(tensor, -0.0, dtype=torch.float64)


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, each larger by a hair (``NUDGE``), in float64."""
    return tensor.double() * (1 + NUDGE)


def _in_float64(
    inputs: Inputs, gradients: Tensors, form: Form, *, magnitude: bool = False
) -> Tensors:
    """The reference in float64 on what ``form`` makes of the inputs and incoming gradients."""
    modes = {"compute_dtype": torch.float64, "magnitude": magnitude}
    leaves, outputs = run_reference(inputs, inputs.values(form), modes)
    return _backward(leaves, outputs, {name: form(sent) for name, sent in gradients.items()})


NUDGE = 2.0**-40  # float64 keeps it, and on numbers that fp32 holds no rounding to fp32 does
_PRECISE: set[tuple[str, str]] = set()  # references and layouts that have been asked


def _is_precise(expected: Expectation, nudged: Tensors) -> bool:
    """Whether this case shows that the oracle is not rounded on its way; such an oracle would
    excuse a kernel that rounds alike, and is a ValueError.

    A relative change of the inputs by ``NUDGE`` must change every lane that is computed and does
    not nearly cancel; a lane that bilinear terms keep still by chance does not count against it.
    """
    lanes = 0
    for name, oracle in expected.oracle.items():
        if oracle.dtype != torch.float64:
            raise ValueError(f"Expected {name} in compute_dtype=float64 but got {oracle.dtype}")
        asked = oracle.isfinite() & (oracle.abs() >= expected.magnitude[name] * 2.0**-8)
        asked &= (oracle != 0) & (expected.terms[name] > 1)
        if int((asked & (oracle == nudged[name])).sum()) * 2 > int(asked.sum()):
            raise ValueError(
                f"Expected every operation in compute_dtype=float64 but {name} was rounded to "
                "fewer bits on the way"
            )
        lanes += int(asked.sum())
    return lanes > 0


def _terms(inputs: Inputs, counted: Tensors) -> Tensors:
    if inputs.spec.terms is not None:
        return {n: torch.full_like(count, inputs.spec.terms) for n, count in counted.items()}
    every = torch.cat([count.flatten() for count in counted.values()])
    if not torch.equal(every, every.round()):
        odd = float(every[every != every.round()][0])
        raise ValueError(
            f"Expected a whole number of terms in every lane but got {odd:.3g}: if a coefficient "
            "is a constant, set OpSpec.terms; an op that is not linear in each of its data inputs "
            "(softmax, a norm, gelu) is out of scope, since no bound is derived for it"
        )
    return counted


def data_names(inputs: Inputs) -> list[str]:
    """The inputs that have a gradient."""
    return [item.name for item in inputs.spec.inputs if item.kind == "data"]


def by_output(inputs: Inputs, result: Any) -> Tensors:
    """The returned tensors by output name; raises ValueError if their number is another."""
    tensors = result if isinstance(result, tuple | list) else (result,)
    names = [item.name for item in inputs.spec.outputs]
    if len(tensors) != len(names) or not all(isinstance(t, torch.Tensor) for t in tensors):
        shown = [type(item).__name__ for item in tensors]
        raise ValueError(f"Expected one tensor for each output {names} but got {shown}.")
    return dict(zip(names, tensors, strict=True))


def run_reference(
    inputs: Inputs, tensors: Tensors, modes: dict[str, Any]
) -> tuple[Tensors, Tensors]:
    """(leaves, outputs) of one run of the reference on ``tensors``, with its keywords ``modes``."""
    reference = resolve_function(inputs.spec.reference)
    leaves = {name: _copy(tensors[name]).requires_grad_() for name in data_names(inputs)}
    absent = {item.name: None for item in inputs.spec.inputs if item.name not in tensors}
    given = {**tensors, **leaves}
    versions = {name: tensor._version for name, tensor in given.items()}
    result = reference(**{**absent, **given, **inputs.constants, **modes})
    if written := [name for name, tensor in given.items() if tensor._version != versions[name]]:
        raise ValueError(f"Expected the arguments to stay as they are but it wrote {written[0]}")
    return leaves, by_output(inputs, result)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in new memory, expanded along the same axes: strides of results, by which
    the candidate is judged, may follow from it."""
    once = tuple(slice(None) if step else slice(1) for step in tensor.stride())
    return tensor[once].clone().expand_as(tensor)


def _backward(leaves: Tensors, outputs: Tensors, gradients: Tensors) -> Tensors:
    """Outputs and gradients by name."""
    found = differentiate(outputs, leaves, gradients)
    results = {name: tensor.detach() for name, tensor in outputs.items()}
    for name, leaf in leaves.items():
        results[f"{name}.grad"] = found[name] if name in found else torch.zeros_like(leaf)
    return results


def differentiate(outputs: Tensors, leaves: Tensors, sent: Tensors, **options: Any) -> Tensors:
    """The gradients of the leaves that have one, by name; ``sent`` goes into those outputs that
    have a graph, and where none has one autograd raises."""
    attached = {name: tensor for name, tensor in outputs.items() if tensor.requires_grad} or outputs
    found = torch.autograd.grad(
        list(attached.values()),
        list(leaves.values()),
        [sent[name] for name in attached],
        allow_unused=True,
        **options,
    )
    return {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}
