"""Running bounds hold for what fp32 really does, and are tight enough to see what it may not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parity.running import Bounded, linear, over_root_mean_square, product, softmax

SEEDS = range(20)
EPS = 2.0**-20


def random(*shape: int, seed: int, wide: bool = False) -> Tensor:
    """fp32 values, over many binades if ``wide``."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator)
    return (
        values * torch.exp2(torch.randint(-20, 5, shape, generator=generator)) if wide else values
    )


def off(computed: Tensor, bounded: Bounded) -> float:
    """The largest share of its bound that any element uses."""
    return float(((computed.double() - bounded.value).abs() / bounded.error).nan_to_num().max())


def near(exact: Tensor, seed: int) -> tuple[Tensor, Bounded]:
    """fp32 values that are off, and the bounded value that says by how much."""
    error = exact.double().abs() * 2.0**-12
    sign = random(*exact.shape, seed=seed).sign().double()
    computed = (exact.double() + sign * error * (1 - 2.0**-10)).float()
    return computed, Bounded(exact.double(), error)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_is_within_its_bound(seed: int) -> None:
    a, b = random(3, 50, seed=seed, wide=True), random(50, 4, seed=seed + 99, wide=True)
    exact = product("ij,jk->ik", Bounded.exact(a), Bounded.exact(b))
    assert off(a @ b, exact) <= 1
    (x, bound_x), (y, bound_y) = near(a, seed + 1), near(b, seed + 2)
    assert off(x @ y, product("ij,jk->ik", bound_x, bound_y)) <= 1


def test_a_product_in_16_bits_is_not() -> None:
    a, b = random(3, 50, seed=0), random(50, 4, seed=1)
    exact = product("ij,jk->ik", Bounded.exact(a), Bounded.exact(b))
    assert off((a.bfloat16() @ b.bfloat16()).float(), exact) > 100


def test_an_error_that_is_not_carried_is_seen() -> None:
    """The same values without the errors of the operands."""
    (x, _), (y, _) = near(random(3, 50, seed=0), 1), near(random(50, 4, seed=2), 3)
    exact = [Bounded.exact(random(*s, seed=n)) for n, s in ((0, (3, 50)), (2, (50, 4)))]
    assert off(x @ y, product("ij,jk->ik", *exact)) > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_softmax_is_within_its_bound(seed: int) -> None:
    scores, bound = near(4 * random(5, 30, seed=seed), seed + 1)
    mask = random(5, 30, seed=seed + 2) > 0
    computed = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    assert off(computed, softmax(bound, mask)) <= 1
    assert off(computed, softmax(Bounded.exact(scores), mask)) <= 1
    wrong = scores.masked_fill(~mask, float("-inf")).mul(1.01).softmax(dim=-1)
    assert off(wrong, softmax(Bounded.exact(scores), mask)) > 100


def test_softmax_of_far_scores_underflows_within_its_bound() -> None:
    scores = torch.tensor([[0.0, -80.0, -95.0, -120.0, -500.0]])
    mask = torch.ones_like(scores, dtype=torch.bool)
    assert off(scores.softmax(dim=-1), softmax(Bounded.exact(scores), mask)) <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_normalizing_is_within_its_bound(seed: int) -> None:
    z, bound = near(random(6, 24, seed=seed, wide=True), seed + 1)
    computed = z * (z.square().mean(-1, keepdim=True) + EPS).rsqrt()
    assert off(computed, over_root_mean_square(bound, EPS)) <= 1
    assert off(computed, over_root_mean_square(Bounded.exact(z), EPS)) <= 1
    wrong = z * (z.square().mean(-1, keepdim=True) + 4 * EPS).rsqrt() * 1.0001
    assert off(wrong, over_root_mean_square(Bounded.exact(z), EPS)) > 10


Step = tuple[Callable[[Tensor], Tensor], Callable[[Bounded], Bounded]]
STEPS: dict[str, Step] = {
    "scaled": (lambda t: t * 0.3, lambda b: b.scaled(0.3)),
    "added": (lambda t: t + t.flip(0), lambda b: b + b.moved(lambda t: t.flip(0))),
    "bfloat16": (lambda t: t.bfloat16().float(), lambda b: b.rounded(torch.bfloat16)),
    "float16": (lambda t: t.half().float(), lambda b: b.rounded(torch.float16)),
    "relu": (torch.relu, Bounded.relu),
    "moved": (lambda t: t.mT[1:], lambda b: b.moved(lambda t: t.mT[1:])),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", range(5))
def test_every_step_is_within_its_bound(name: str, seed: int) -> None:
    compute, bound = STEPS[name]
    values, bounded = near(random(40, 50, seed=seed, wide=True), seed + 1)
    assert off(compute(values), bound(bounded)) <= 1
    exact = bound(Bounded.exact(values))
    assert bool(((compute(values).double() - exact.value).abs() <= exact.error).all())
    assert bool(((compute(values).double() * 1.02 - exact.value).abs() > exact.error).any())


@pytest.mark.parametrize("inner", [torch.float32, torch.bfloat16])
def test_a_linear_op_rounds_once_or_at_every_operation(inner: torch.dtype) -> None:
    """Lanes that are copies keep their bits, whatever their bound was before."""
    a = random(6, 6, seed=0).bfloat16()
    a[3:] = torch.eye(6).bfloat16()[3:]
    x = random(6, seed=1).bfloat16()
    a[:3] = torch.where(torch.arange(6) < 2, a[:3], 0.0)  # two terms a lane
    bound = linear(
        Bounded.exact(x),
        lambda t: a.double() @ t,
        lambda t: a.double().abs() @ t,
        (a != 0).double().sum(-1),
        torch.bfloat16,
        inner,
    )
    terms = a.to(inner) * x.to(inner)
    computed = (terms[:, 0] + terms[:, 1]).bfloat16()
    computed[3:] = x[3:]
    assert bool(((computed.double() - bound.value).abs() <= bound.error).all())
    assert bool((bound.error[3:] == 0).all())
    assert bool(((computed.double() * 1.05 - bound.value).abs() > bound.error)[:3].any())
