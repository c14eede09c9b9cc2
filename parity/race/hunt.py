"""Look for races: one large case many times over, bit for bit against the same kernel in one warp.

The lanes of one warp go through a kernel together, so that what one of them stores cannot overtake
what another has yet to load.  Several warps need a barrier for that, and a kernel that lacks one is
right on most runs: small cases and few repeats show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..case import Case
from ..effects import Allocations
from ..guards import bits
from ..inputs import Inputs, build_inputs, dims, shape_of
from ..observe import call_arguments, candidate_function
from ..oracle import by_output, data_names
from ..spec import OpSpec

PASSES = ("forward", "backward")
Results = tuple[torch.Tensor, ...]
Call = Callable[[], Results]


@dataclass(frozen=True)
class Size:
    """The sizes of a hunted case: [tokens, heads, width + rope], ``width`` for every other axis."""

    tokens: int = 4096
    heads: int = 32
    width: int = 128


@dataclass(frozen=True)
class Outcome:
    """How ``runs`` runs compare with the one-warp run of the same tile.

    ``wrong`` runs had other bits than that run, in ``elements`` elements altogether, at most
    ``largest`` apart; ``unsteady`` ones had other bits than the first of the runs.
    """

    runs: int
    wrong: int
    unsteady: int
    elements: int
    largest: float


def case_of(spec: OpSpec, rope: int, size: Size, tile: Mapping[str, int | None]) -> Case:
    """The dense bfloat16 case of a size, in the op's first layout, every flag at its default."""
    layout = spec.layouts[0]
    special = {"heads": size.heads, "rope_dim": rope}
    axes = {name: special.get(name, size.width) for name in spec.axes}
    if layout == "plain":
        axes["tokens"] = size.tokens
    elif layout != "thd":
        axes |= {"seq": size.tokens, "batch": 1}
    variants = {item.name: "contiguous" for item in spec.inputs if item.shape}
    variants |= {f"{item.name}.grad": "contiguous" for item in spec.outputs}
    variants |= {"cu_seqlens": "int32", "position_ids": "absent", "values": "normal"}
    pack: dict[str, Any] = {"lengths": (size.tokens,), "gaps": (0,)} if layout == "thd" else {}
    return Case(
        spec.name,
        layout,
        "bfloat16",
        axes,
        flags={name: values[0] for name, values in spec.flags_of(layout).items()},
        variants=variants,
        tile=dict(tile),
        **pack,
    )


def hunt(inputs: Inputs, passing: str, warps: int, repeats: int) -> Outcome:
    """Run one pass ``repeats`` times in ``warps`` warps, each time on fresh copies of ``inputs``.

    Raises:
        ValueError: no Triton kernel was launched with that many warps, so nothing was learnt.
        Unsupported: the candidate lacks the function, a parameter or the tile.
    """
    with forced_warps(1, inputs.device):
        call = _call(inputs, passing)
        expected = _kept(call())
    with forced_warps(warps, inputs.device) as used:
        first = _kept(call())
        wrong = unsteady = elements = 0
        largest = 0.0
        for _ in range(repeats):
            found = call()
            differing, apart = _difference(found, expected)
            wrong += differing > 0
            elements += differing
            largest = max(largest, apart)
            unsteady += _difference(found, first)[0] > 0
    if set(used) != {warps}:
        raise ValueError(
            f"Expected the {passing} of {inputs.spec.name} to launch Triton kernels in {warps} "
            f"warps but got launches in {sorted(set(used)) or 'no'} warps; only Triton kernels can "
            "be hunted."
        )
    return Outcome(repeats, wrong, unsteady, elements, largest)


def inputs_of(spec: OpSpec, case: Case, device: torch.device) -> Inputs:
    """The tensors of a case with normally distributed data, which is quick to draw."""
    random = torch.Generator(device).manual_seed(case.seed)
    axes = dims(case)
    given = {
        item.name: torch.randn(
            shape_of(item.shape, case.layout, axes), generator=random, device=device
        )
        for item in spec.inputs
        if item.kind == "data"
    }
    return build_inputs(spec, case, device, given)


def _call(inputs: Inputs, passing: str) -> Call:
    if passing == "forward":
        return lambda: _forward(inputs, {name: _data(inputs, name) for name in data_names(inputs)})
    leaves = {name: _data(inputs, name).requires_grad_() for name in data_names(inputs)}
    outputs = _forward(inputs, {name: leaf.clone() for name, leaf in leaves.items()})
    random = torch.Generator(inputs.device).manual_seed(inputs.case.seed + 1)
    gradients = [
        torch.randn(output.shape, generator=random, device=output.device).to(output.dtype)
        for output in outputs
    ]

    def backward() -> Results:
        incoming = [gradient.clone() for gradient in gradients]  # an op may write it
        with Allocations("backward", []):
            found = torch.autograd.grad(
                outputs, list(leaves.values()), incoming, retain_graph=True, allow_unused=True
            )
        return tuple(gradient for gradient in found if gradient is not None)

    return backward


def _data(inputs: Inputs, name: str) -> torch.Tensor:
    return inputs.tensors[name].tensor.clone()


def _forward(inputs: Inputs, data: Mapping[str, torch.Tensor]) -> Results:
    """The outputs, in memory that starts out poisoned: freed memory may hold the right answer."""
    candidate = candidate_function(inputs.spec.candidate)
    with Allocations("forward", []):
        result = candidate(**call_arguments(candidate, inputs, data))
    return tuple(by_output(inputs, result).values())


def _kept(results: Results) -> Results:
    return tuple(tensor.detach().clone() for tensor in results)


def _difference(found: Results, expected: Results) -> tuple[int, float]:
    """(elements with other bits, largest distance of two of them)."""
    count, largest = 0, 0.0
    for ours, theirs in zip(found, expected, strict=True):
        differs = bits(ours.detach().contiguous()) != bits(theirs.contiguous())
        here = int(differs.sum())
        if here:
            apart = (ours.detach()[differs].float() - theirs[differs].float()).abs()
            largest = max(largest, float(apart.nan_to_num(nan=torch.inf).max()))
        count += here
    return count, largest


@contextmanager
def forced_warps(warps: int, device: torch.device) -> Iterator[list[int]]:
    """Launch every Triton kernel in this many warps; yields the number of each launch's warps.

    This is below autotuners and wrappers, so whatever they ask for is overruled.  The interpreter
    has no warps and takes any number.
    """
    kind = _function_kind(device)
    stock, used = kind.run, []

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = stock(self, *args, **(kwargs | {"num_warps": warps}))
        used.append(warps if kernel is None else kernel.metadata.num_warps)
        return kernel

    kind.run = run
    try:
        yield used
    finally:
        kind.run = stock


def _function_kind(device: torch.device) -> Any:
    if device.type == "cuda":
        from triton.runtime.jit import JITFunction

        return JITFunction
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction
