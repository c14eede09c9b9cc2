"""A gradient of a gradient is refused: none of our kernels computes one, and a constant in its
place would silently lack a term wherever other terms have a graph."""

import pytest
import torch

from parity.catalog import resolve
from parity.generate import plan
from parity.inputs import build_inputs
from parity.oracle import differentiate
from parity.runner import device
from parity.spec import OpSpec
from parity.trial import incoming, run


@pytest.mark.parametrize("spec", resolve("parity").values(), ids=lambda spec: spec.name)
def test_no_gradient_of_a_gradient_is_taken_for_a_constant(spec: OpSpec) -> None:
    trial = run(build_inputs(spec, plan(spec, 0, 0)[0], device()))
    sent = {n: g.requires_grad_() for n, g in incoming(trial.inputs, trial.outputs).items()}
    once = differentiate(trial.outputs, trial.leaves, sent, create_graph=True)
    for gradient in once.values():
        beside = sum(each.sum() for each in sent.values())
        with pytest.raises(RuntimeError, match="once_differentiable"):
            torch.autograd.backward(gradient.sum() + beside, retain_graph=True)
