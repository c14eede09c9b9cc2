"""Streams, devices and torch.compile: the same bits whichever way an op is called.

Our ops are Python functions around ``torch.autograd.Function``; one that is registered with
``torch.library`` is held to ``opcheck`` by :mod:`parity.registered`, with a GPU or without.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from parity.case import Case
from parity.catalog import resolve
from parity.comparators import same_bits
from parity.generate import plan
from parity.inputs import build_inputs
from parity.observe import candidate_function, feed
from parity.runner import device
from parity.spec import OpSpec
from parity.trial import Feed, gradients, run

SPECS = resolve("parity")
pytestmark = pytest.mark.skipif(
    device().type != "cuda", reason="NOT_RUN: streams, devices and compiling need a GPU"
)
Results = dict[str, Tensor]
SLEEP = 20_000_000  # clock cycles, some 10 ms: far longer than any launch here
CANDIDATES: dict[str, Callable[..., Any]] = {}


def cases(spec: OpSpec) -> list[Case]:
    """A few planned cases of both layouts, without NaN and without shared elements."""
    drawn = [
        case
        for case in plan(spec, 0, 0)
        if case.variants["values"] in ("normal", "paired", "constant")
        and not any(variant.startswith("expanded") for variant in case.variants.values())
    ]
    chosen = [case for layout in spec.layouts for case in drawn if case.layout == layout][::3]
    assert {case.layout for case in chosen} == set(spec.layouts)
    return chosen


def results(spec: OpSpec, case: Case, where: torch.device, feeding: Feed = feed) -> Results:
    """Outputs and gradients of one run."""
    trial = run(build_inputs(spec, case, where), feeding)
    outputs = {name: output.detach().clone() for name, output in trial.outputs.items()}
    return outputs | gradients(trial)


def differing(actual: Results, expected: Results) -> list[str]:
    return [
        name
        for name, wanted in expected.items()
        if same_bits(actual=actual[name].cpu(), expected=wanted.cpu()) is not None
    ]


def called(spec: OpSpec, function: Callable[..., Any]) -> OpSpec:
    """The contract with ``function`` as its candidate."""
    CANDIDATES[spec.name] = function
    return replace(spec, candidate=f"{__name__}:{spec.name}")


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in CANDIDATES:
        raise AttributeError(name)
    return CANDIDATES[name]


# --- streams -------------------------------------------------------------------------------------


def arriving_late(leaf: Tensor, tensor: Tensor) -> Tensor:
    """Data that the current stream writes only after a while: another stream would read NaN."""
    values = tensor.clone()
    tensor.fill_(float("nan"))
    torch.cuda._sleep(SLEEP)
    tensor.copy_(values)
    return feed(leaf, tensor)


def on_a_side_stream(spec: OpSpec, case: Case) -> Results:
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = results(spec, case, device(), arriving_late)
    torch.cuda.synchronize()
    return found


@pytest.mark.parametrize("op", SPECS)
def test_another_stream_gives_the_same_bits(op: str) -> None:
    for case in cases(SPECS[op]):
        expected = results(SPECS[op], case, device())
        assert differing(on_a_side_stream(SPECS[op], case), expected) == [], case.to_json()


def test_a_launch_on_the_default_stream_is_seen() -> None:
    spec = SPECS["fused_mla_rope_out_of_place"]
    candidate = candidate_function(spec.candidate)

    @wraps(candidate)
    def on_the_default_stream(**arguments: Any) -> Any:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return candidate(**arguments)

    dense = dict.fromkeys(("t", "cos", "sin", "output.grad"), "contiguous")
    case = next(case for case in cases(spec) if case.layout == "sbhd")
    case = replace(case, variants={**case.variants, **dense})
    expected = results(spec, case, device())
    assert "output" in differing(
        on_a_side_stream(called(spec, on_the_default_stream), case), expected
    )


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NOT_RUN: this needs two GPUs")
@pytest.mark.parametrize("op", SPECS)
def test_tensors_need_not_be_on_the_current_device(op: str) -> None:
    other = torch.device("cuda", 1 - torch.cuda.current_device())
    for case in cases(SPECS[op]):
        expected = results(SPECS[op], case, device())
        found = results(SPECS[op], case, other)
        outputs = {name: found[name].device for name in found if not name.endswith(".grad")}
        assert set(outputs.values()) == {other}
        assert differing(found, expected) == [], case.to_json()


# --- torch.compile -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", SPECS)
def test_compiled_code_gives_the_same_bits_for_two_sizes_or_says_unsupported(op: str) -> None:
    spec = SPECS[op]
    case = next(case for case in cases(spec) if case.layout == "sbhd")
    torch._dynamo.reset()
    candidate = candidate_function(spec.candidate)
    compiled = wraps(candidate)(torch.compile(candidate))
    for batch in (1, 3):
        sized = replace(case, axes={**case.axes, "seq": 4, "batch": batch})
        expected = results(spec, sized, device())
        try:
            found = results(called(spec, compiled), sized, device())
        except torch._dynamo.exc.TorchDynamoException as error:
            pytest.skip(f"UNSUPPORTED: torch.compile refuses {op}: {str(error).splitlines()[0]}")
        assert differing(found, expected) == [], sized.to_json()
