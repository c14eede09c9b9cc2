"""Tensor parallelism: every rank has some of the heads and all of the shared key.

Key, value and the gradient of ``kv`` belong to heads, and put together they are the unsharded ones
bit for bit.  The shared key serves the heads of all ranks, so its gradient must be summed over
them; that sum is rounded more often than the unsharded one, and is held to a bound of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from parity.bounds import unit_roundoff
from parity.comparators import same_bits, within
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.tables import Yarn, cos_sin
from parity.reference.kv_split import fused_mla_rope_kv_split as reference
from parity.runner import device
from parity.running import Bounded, linear

HEADS, KEY, ROPE, VALUE = 8, 5, 4, 6
LEAD = {"sbhd": (7, 2), "thd": (14,)}
DTYPES = (torch.float32, torch.bfloat16)


class Case(NamedTuple):
    """Whole inputs, incoming gradients, and everything else that the op takes."""

    kv: Tensor
    shared: Tensor
    grads: tuple[Tensor, Tensor]
    tables: tuple[Tensor, Tensor]
    cu_seqlens: Tensor | None

    def call(self, op: Any, kv: Tensor, shared: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        packing = {"cu_seqlens_kv": self.cu_seqlens}
        outputs: tuple[Tensor, Tensor] = op(
            kv, shared, *self.tables, ROPE, KEY, VALUE, **packing, **options
        )
        return outputs


def build(layout: str, dtype: torch.dtype, seed: int) -> Case:
    lead = LEAD[layout]
    shapes = ((HEADS, KEY + VALUE), (1, ROPE), (HEADS, KEY + ROPE), (HEADS, VALUE))
    kv, shared, grad_key, grad_value = (
        random((*lead, *shape), seed + i, dtype) for i, shape in enumerate(shapes)
    )
    cu_seqlens = torch.tensor([0, 5, 5, 14], dtype=torch.int32, device=device())
    tables = cos_sin(Yarn(ROPE, scaling_factor=40.0), lead[0], device=device())
    packing = cu_seqlens if layout == "thd" else None
    return Case(kv, shared, (grad_key, grad_value), tables, packing)


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device(), dtype)


def heads_of(tensor: Tensor, rank: int, size: int) -> Tensor:
    """The heads of one rank, [.., HEADS / size, D]."""
    return tensor.chunk(size, dim=-2)[rank]


class _Shared(torch.autograd.Function):
    """What all ranks of a group use alike: the same forward, and gradients that are summed
    (Megatron-LM's f, arXiv 1909.08053, section 3)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.reduce = reduce
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.reduce(grads[0]), None


Results = tuple[Tensor, Tensor, Tensor, Tensor]  # key, value, gradients of kv and the shared key


def sharded(case: Case, group: Any, rank: int, reduce: Callable[[Tensor], Tensor]) -> Results:
    """The results of a rank that takes itself for ``rank``, those of heads from all ranks."""
    kv = heads_of(case.kv, rank, group.size).clone().requires_grad_()
    shared = case.shared.clone().requires_grad_()
    outputs = case.call(fused_mla_rope_kv_split, kv, _Shared.apply(shared, reduce))
    grads = [heads_of(grad, group.rank, group.size) for grad in case.grads]
    grad_kv, grad_shared = torch.autograd.grad(outputs, (kv, shared), grads)
    key, value, grad_kv = (
        torch.cat(group.gathered(t.detach()), dim=-2) for t in (*outputs, grad_kv)
    )
    return key, value, grad_kv, grad_shared


def whole(case: Case) -> Results:
    kv, shared = (t.clone().requires_grad_() for t in (case.kv, case.shared))
    outputs = case.call(reference, kv, shared)
    grads = torch.autograd.grad(outputs, (kv, shared), case.grads)
    return outputs[0].detach(), outputs[1].detach(), *grads


def bound(case: Case, size: int) -> Bounded:
    """The summed gradient of the shared key in float64, and how far off it may be.

    Each rank's part has the bound of the op.  Adding ``size`` parts in the storage dtype, in any
    order, is off by at most ``(size - 1) u`` times the sum of their magnitudes (Jeannerod and
    Rump, "Improved error bounds for inner products in floating-point arithmetic", 2013).
    """
    dtype = case.shared.dtype
    parts = [part_bound(case, rank, size) for rank in range(size)]
    value = sum((part.value for part in parts), torch.zeros(()))
    error = sum((part.error for part in parts), torch.zeros(()))
    magnitude = sum((part.size for part in parts), torch.zeros(()))
    return Bounded(value, error + (size - 1) * unit_roundoff(dtype) * magnitude)


def part_bound(case: Case, rank: int, size: int) -> Bounded:
    """The gradient of the shared key through the heads of one rank."""
    absolute = case._replace(tables=(case.tables[0].abs(), case.tables[1].abs()))

    def gradient(of: Case, incoming: Tensor, **options: Any) -> Tensor:
        kv = heads_of(case.kv, rank, size).double()
        shared = torch.zeros_like(case.shared, dtype=torch.float64).requires_grad_()
        key, _ = of.call(reference, kv, shared, compute_dtype=torch.float64, **options)
        return torch.autograd.grad(key, shared, incoming)[0]

    incoming = Bounded.exact(heads_of(case.grads[0], rank, size))
    terms = torch.full_like(case.shared, 2.0 * HEADS / size, dtype=torch.float64)
    magnitude = partial(gradient, absolute, magnitude=True)
    return linear(incoming, partial(gradient, case), magnitude, terms, case.shared.dtype)


def differing(case: Case, group: Any, results: Results) -> list[str]:
    """The results that are not those of the unsharded op."""
    expected = whole(case)
    names = ("key", "value", "grad_kv")
    found = [
        name
        for name, a, b in zip(names, results, expected, strict=False)
        if same_bits(actual=a, expected=b)
    ]
    limit = bound(case, group.size)
    if within(actual=results[3], expected=limit.value, limit=limit.error):
        found.append("grad_shared")
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LEAD)
def test_the_heads_of_all_ranks_are_the_whole(group: Any, layout: str, dtype: torch.dtype) -> None:
    case = build(layout, dtype, seed=10 * group.index)
    assert differing(case, group, sharded(case, group, group.rank, group.summed)) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LEAD)
def test_a_missing_reduction_is_seen(group: Any, layout: str, dtype: torch.dtype) -> None:
    """Each rank keeps the part of its own heads; a group of one has nothing to sum."""
    case = build(layout, dtype, seed=10 * group.index)
    found = differing(case, group, sharded(case, group, group.rank, torch.clone))
    assert found == (["grad_shared"] if group.size > 1 else [])


def test_a_reduction_twice_is_seen(group: Any) -> None:
    case = build("thd", torch.bfloat16, seed=10 * group.index)
    twice = sharded(case, group, group.rank, lambda grad: group.summed(group.summed(grad)))
    assert differing(case, group, twice) == (["grad_shared"] if group.size > 1 else [])


def test_heads_of_another_rank_are_seen(group: Any) -> None:
    """The mistake: ranks deal out the heads of ``kv`` in reverse order."""
    case = build("sbhd", torch.float32, seed=10 * group.index)
    found = differing(case, group, sharded(case, group, group.size - 1 - group.rank, group.summed))
    assert found == (["key", "value"] if group.size > 1 else [])
