"""New contents in the same buffers: a second call, and the replay of a captured CUDA graph.

A graph repeats launches with the addresses it was captured with.  An op that keeps a number it read
from a buffer, on the host or in a cache, then answers for data that is no longer there.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from parity.case import Case
from parity.catalog import resolve
from parity.comparators import same_bits
from parity.generate import is_legal, plan
from parity.inputs import Inputs, build_inputs, incoming_gradient
from parity.observe import candidate_function
from parity.oracle import by_output, data_names, expect
from parity.runner import device
from parity.spec import OpSpec

SPECS = resolve("parity")
LENGTHS = ((2, 0, 5), (5, 2, 0))  # of one total and one longest, so that all shapes are equal
Results = dict[str, Tensor]


def two_cases(spec: OpSpec, layout: str) -> tuple[Case, Case]:
    """Cases of equal shapes that differ in every number."""
    drawn = next(case for case in plan(spec, 0, 0) if case.layout == layout)
    variants = dict.fromkeys(drawn.variants, "contiguous")
    variants |= {"values": "normal", "storage": "apart"}
    axes = dict.fromkeys(drawn.axes, 3) | {"rope_dim": 4, "nope_dim": 5, "spare_positions": 0}
    case = replace(
        drawn,
        dtype="bfloat16",
        axes={name: axes[name] for name in drawn.axes}
        | {name: 5 for name in ("k_dim", "v_dim") if name in drawn.axes},
        flags={name: values[0] for name, values in spec.flags_of(layout).items()},
        tile=dict.fromkeys(drawn.tile),
        cp_size=1,
        cp_rank=0,
        tail=1 if layout == "thd" else 0,
        variants=variants | _packing_variants(layout),
    )
    cases = tuple(
        replace(case, seed=seed, **_pack(layout, lengths))
        for seed, lengths in enumerate(LENGTHS, start=1)
    )
    assert not any(is_legal(spec, case) for case in cases)
    return cases


def _packing_variants(layout: str) -> dict[str, str]:
    return {"cu_seqlens": "int32", "position_ids": "absent"} if layout == "thd" else {}


def _pack(layout: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    return {"lengths": lengths, "gaps": (0,) * len(lengths)} if layout == "thd" else {}


class Step:
    """Forward and backward of one op on static buffers."""

    def __init__(self, spec: OpSpec, case: Case, candidate: Callable[..., Any]) -> None:
        self.inputs = build_inputs(spec, case, device())
        self.candidate = candidate
        self.leaves = {
            name: self.inputs.tensors[name].tensor.requires_grad_()
            for name in data_names(self.inputs)
        }
        self.grads: Results = {}

    def __call__(self) -> Results:
        inputs = self.inputs
        absent = {i.name: None for i in inputs.spec.inputs if i.name not in inputs.tensors}
        tensors = {name: item.tensor for name, item in inputs.tensors.items()}
        fed = {name: leaf * 1 for name, leaf in self.leaves.items()}  # in place refuses leaves
        result = self.candidate(**{**absent, **tensors, **fed, **inputs.constants})
        outputs = by_output(inputs, result)
        for name, output in outputs.items():
            if name not in self.grads:
                self.grads[name] = _grad(inputs, name, output)
        found = torch.autograd.grad(
            [*outputs.values()], [*self.leaves.values()], [self.grads[name] for name in outputs]
        )
        gradients = {f"{n}.grad": g for n, g in zip(self.leaves, found, strict=True)}
        return {name: output.detach() for name, output in outputs.items()} | gradients

    def refill(self, spec: OpSpec, case: Case) -> Results:
        """Put the numbers of another case into the same buffers; what they must give."""
        other = build_inputs(spec, case, device())
        expected = expect(other).reference
        with torch.no_grad():
            for name, item in other.tensors.items():
                self.inputs.tensors[name].tensor.copy_(item.tensor)
            for name, grad in self.grads.items():
                grad.copy_(_grad(other, name, grad))
        return expected


def _grad(inputs: Inputs, name: str, like: Tensor) -> Tensor:
    return incoming_gradient(inputs, name, like.shape, like.dtype).tensor


def by_call(step: Step) -> tuple[Results, Callable[[], None]]:
    results = step()
    return results, lambda: results.update(step())


def by_graph(step: Step) -> tuple[Results, Callable[[], None]]:
    if device().type != "cuda":
        pytest.skip("NOT_RUN: capturing a CUDA graph needs a GPU")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # compiles, and lets the allocator and autograd set themselves up
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return results, replay


def stale(
    spec: OpSpec, layout: str, repeat: Callable[..., Any], candidate: Any = None
) -> list[str]:
    """The results that are not those of the new contents after a repetition."""
    first, second = two_cases(spec, layout)
    step = Step(spec, first, candidate or candidate_function(spec.candidate))
    results, again = repeat(step)
    expected = step.refill(spec, second)
    again()
    return [
        name
        for name, wanted in expected.items()
        if same_bits(actual=results[name].cpu(), expected=wanted) is not None
    ]


@pytest.mark.parametrize("repeat", [by_call, by_graph])
@pytest.mark.parametrize("layout", ["sbhd", "thd"])
@pytest.mark.parametrize("op", SPECS)
def test_new_contents_give_the_new_answer(op: str, layout: str, repeat: Any) -> None:
    assert stale(SPECS[op], layout, repeat) == []


@pytest.mark.parametrize("repeat", [by_call, by_graph])
def test_a_packing_that_is_remembered_is_seen(repeat: Any) -> None:
    """The planted bug keeps a copy of the first cu_seqlens it was given, by address."""
    spec = SPECS["fused_mla_rope_concat"]
    candidate, seen = candidate_function(spec.candidate), {}

    def remembering(*, cu_seqlens: Tensor, **arguments: Any) -> Tensor:
        kept = seen.setdefault(cu_seqlens.data_ptr(), cu_seqlens.clone())
        return candidate(cu_seqlens=kept, **arguments)  # type: ignore[no-any-return]

    assert stale(spec, "thd", repeat, remembering) == ["output", "rope.grad"]
