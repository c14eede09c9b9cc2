"""Consumers around the fused and the unfused op: loss, gradients and saved tensors, bit for bit.

Two known corruptions are planted: a query kernel that overwrites what a projection saved for dW,
and an inverse rotation that overwrites the output a backward needs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from parity.comparators import same_bits
from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.reference.attention import UNFUSED, NormalizedProjection, RopeOps

CONSUMERS = ("mla", "absorbed_mla", "dsa_indexer", "sparse_attention")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FUSED = RopeOps(fused_mla_rope_out_of_place, fused_mla_rope_kv_split)
IN_PLACE = RopeOps(fused_mla_rope_inplace, fused_mla_rope_kv_split)


class Run:
    """One forward and backward of a consumer, with what it saved outside the rope ops."""

    def __init__(self, setup: Any, ops: RopeOps) -> None:
        self.saved: list[Tensor] = []
        self.spoiled: list[str] = []
        with saved_tensors_hooks(self._pack, self._unpack):
            result = setup.call(RopeOps(*map(unrecorded, ops)))
        output, self.integers = result if isinstance(result, tuple) else (result, None)
        finite = output[output.isfinite()].float()
        generator = torch.Generator().manual_seed(9)
        weight = torch.randn(finite.shape, generator=generator, device="cpu").to(finite.device)
        self.loss = (finite * weight).sum()
        leaves = setup.leaves
        found = torch.autograd.grad(self.loss, list(leaves.values()))
        results = {"output": output.detach(), "loss": self.loss.detach()}
        self.results = results | dict(zip(leaves, found, strict=True))

    def _pack(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        self.saved.append(tensor.detach().clone())
        return tensor, self.saved[-1]

    def _unpack(self, packed: tuple[Tensor, Tensor]) -> Tensor:
        tensor, before = packed
        if same_bits(actual=tensor.detach(), expected=before):
            self.spoiled.append(f"a saved tensor of shape {tuple(tensor.shape)} changed")
        return tensor


def unrecorded(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op with hooks of its own, so that only what its consumer saves is recorded."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return op(*args, **kwargs)

    return call


def differences(run: Run, other: Run) -> list[str]:
    """The results and saved tensors that do not have equal bits."""
    pairs = [(name, tensor, other.results[name]) for name, tensor in run.results.items()]
    if len(run.saved) != len(other.saved):
        return [f"{len(run.saved)} saved tensors and {len(other.saved)}"]
    pairs += [
        (f"saved {i}", a, b) for i, (a, b) in enumerate(zip(run.saved, other.saved, strict=True))
    ]
    return [
        name
        for name, a, b in pairs
        if a.shape != b.shape or a.dtype != b.dtype or same_bits(actual=a, expected=b)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONSUMERS)
def test_fused_is_unfused_bit_for_bit(consumer: Any, name: str, dtype: torch.dtype) -> None:
    setup = consumer(name, dtype)
    fused, unfused = Run(setup, FUSED), Run(setup, UNFUSED)
    assert differences(fused, unfused) == []
    assert fused.saved
    assert fused.spoiled == unfused.spoiled == []
    assert all(gradient.any() for gradient in fused.results.values())
    if fused.integers is not None:
        assert fused.integers.equal(unfused.integers)


def test_another_bit_would_be_seen(consumer: Any) -> None:
    """One lane of one query an ulp off changes saved tensors; a loss may absorb it."""

    def nudged(t: Tensor, *args: Any, **flags: Any) -> Tensor:
        rotated = fused_mla_rope_out_of_place(t, *args, **flags)
        factor = torch.ones_like(rotated)
        factor[-1, 0, 0, -1] += torch.finfo(t.dtype).eps
        return rotated * factor

    setup = consumer("mla", torch.float32)
    found = differences(
        Run(setup, FUSED._replace(rotate=nudged)), Run(setup, FUSED._replace(rotate=twice))
    )
    assert "query" in found


def twice(t: Tensor, *args: Any, **flags: Any) -> Tensor:
    """The honest twin of ``nudged``: it multiplies too, by ones."""
    rotated = fused_mla_rope_out_of_place(t, *args, **flags)
    return rotated * torch.ones_like(rotated)


def test_the_honest_twin_of_another_bit(consumer: Any) -> None:
    setup = consumer("mla", torch.float32)
    run, honest = Run(setup, FUSED), Run(setup, FUSED._replace(rotate=twice))
    assert run.results["loss"].equal(honest.results["loss"])


# --- the two corruptions


class _Overwrite(torch.autograd.Function):
    """Rotates in place behind autograd's back, as a kernel does that never marks its argument."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, rotate: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            ctx.leaf = t.detach().clone().requires_grad_()
            ctx.rotated = rotate(ctx.leaf)
        t.data.copy_(ctx.rotated)  # .data: the version that autograd checks stays as it was
        return t.data.view(t.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.autograd.grad(ctx.rotated, ctx.leaf, grads[0])[0], None


def overwriting(t: Tensor, *args: Any, only_inverse: bool = False, **flags: Any) -> Tensor:
    rotate = partial(fused_mla_rope_out_of_place, **flags)
    if only_inverse and not flags.get("inverse"):
        return rotate(t, *args)
    return _Overwrite.apply(t, lambda leaf: rotate(leaf, *args))  # type: ignore[no-any-return]


PLANTED = {
    # consumer, careless op, what must be wrong, what must not
    "what a projection saved for dW": ("mla", overwriting, {"query", "x"}, {"output", "loss"}),
    "the output that a backward needs": (
        "sparse_attention",
        partial(overwriting, only_inverse=True),
        {"query", "latent", "x"},
        {"output", "loss"},
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plant", PLANTED)
def test_a_silent_overwrite_is_caught(consumer: Any, plant: str, dtype: torch.dtype) -> None:
    """Outputs are right, which is why the bug lives on; saved tensors and gradients are not."""
    name, careless, wrong, right = PLANTED[plant]
    setup = consumer(name, dtype)
    planted, honest = Run(setup, FUSED._replace(rotate=careless)), Run(setup, FUSED)
    found = set(differences(planted, honest))
    assert wrong <= found
    assert not right & found
    assert planted.spoiled
    assert not honest.spoiled


def test_a_published_query_kernel_overwrites_what_a_projection_saved(
    consumer: Any, megatron: RopeOps
) -> None:
    """Nothing raises; its honest twin is handed a copy."""
    setup = consumer("mla", torch.float32, nope=8, value=4)
    copied = megatron._replace(rotate=lambda t, *args: megatron.rotate(t.clone(), *args))
    assert Run(setup, megatron).spoiled
    assert not Run(setup, copied).spoiled


@pytest.mark.parametrize("plant", PLANTED)
def test_rotating_in_place_with_the_dirty_mark_is_refused(consumer: Any, plant: str) -> None:
    """The same overwrite by our in-place op: autograd knows, and raises instead."""
    name, _, _, _ = PLANTED[plant]
    setup = consumer(name, torch.float32)
    # without the hooks of Run: autograd compares versions only of tensors that it keeps itself
    output = setup.call(IN_PLACE)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_rotating_in_place_where_nobody_saved_it_is_right(consumer: Any) -> None:
    """The indexer's projections keep their inputs only, so in place is unfused, bit for bit."""
    setup = consumer("dsa_indexer", torch.bfloat16)
    assert differences(Run(setup, IN_PLACE), Run(setup, UNFUSED)) == []


# --- the hand-written backwards


@pytest.mark.parametrize("name", CONSUMERS)
def test_gradients_are_the_derivatives(consumer: Any, name: str) -> None:
    setup = consumer(name, torch.float64)
    wide = RopeOps(*(partial(op, compute_dtype=torch.float64) for op in UNFUSED))

    def function(*_: Tensor) -> Tensor:
        result = setup.call(wide)
        output = result[0] if isinstance(result, tuple) else result
        return output[output.isfinite()]

    assert torch.autograd.gradcheck(function, tuple(setup.leaves.values()), fast_mode=True)


def test_normalized_heads_have_mean_square_one() -> None:
    x, weight = torch.randn(3, 2, 8).double(), torch.randn(8, 2, 5).double()
    y = NormalizedProjection.apply(x, weight)
    # eps 2^-20 against mean squares of order one
    assert (y.square().mean(-1) - 1).abs().max() < 2.0**-16
