"""Consumers against float64: absorbed equals plain, low precision within its running bound.

The oracle is written down again on values that carry their bound, and shares with the consumers
only the rotation, which has an oracle of its own (``test_reference_oracle.py``).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.reference.attention import UNFUSED, NormalizedProjection, RopeOps
from parity.reference.out_of_place import fused_mla_rope_out_of_place as reference_rotation
from parity.running import Bounded, linear, over_root_mean_square, product, softmax

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FUSED = RopeOps(fused_mla_rope_out_of_place, fused_mla_rope_kv_split)
WIDE = RopeOps(*(partial(op, compute_dtype=torch.float64) for op in UNFUSED))


@pytest.mark.parametrize("seed", range(5))
def test_absorbed_is_plain_in_float64(consumer: Any, seed: int) -> None:
    """To 1e-12 of the largest, forward and backward: the same sums in another order."""
    results = []
    for name in ("mla", "absorbed_mla"):
        setup = consumer(name, torch.float64, seed)
        output = setup.call(WIDE)
        grad = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
        results.append([output, *torch.autograd.grad(output, [*setup.leaves.values()], grad)])
    for plain, absorbed in zip(*results, strict=True):
        assert (plain - absorbed).abs().max() <= 1e-12 * plain.abs().max()


# --- the oracles


class Oracle:
    """The consumers' formulas on bounded values, for tensors of ``dtype``."""

    def __init__(
        self, dtype: torch.dtype, cos: Tensor, sin: Tensor, rope_dim: int, native: bool = False
    ) -> None:
        self.dtype, self.rope_dim = dtype, rope_dim
        self.inner = dtype if native else torch.float32
        self.table = cos.double(), sin.double()

    def project(self, equation: str, a: Bounded, b: Tensor | Bounded) -> Bounded:
        other = b if isinstance(b, Bounded) else Bounded.exact(b)
        return product(equation, a, other).rounded(self.dtype)

    def rotate(self, x: Bounded, **flags: bool) -> Bounded:
        nope_dim = x.value.shape[-1] - self.rope_dim
        wide = partial(reference_rotation, compute_dtype=torch.float64, **flags)
        absolute = [table.abs() for table in self.table]
        ones = [torch.ones_like(table) for table in self.table]
        lanes = (nope_dim, self.rope_dim)
        return linear(
            x,
            lambda t: wide(t, *self.table, *lanes),
            lambda t: wide(t, *absolute, *lanes, magnitude=True),
            wide(torch.ones_like(x.value), *ones, *lanes, magnitude=True),
            self.dtype,
            self.inner,
        )

    def query(self, x: Tensor, weight: Tensor) -> Bounded:
        z = product("sbm,mhd->sbhd", Bounded.exact(x), Bounded.exact(weight))
        return over_root_mean_square(z, NormalizedProjection.EPS).rounded(self.dtype)

    def mla(self, x: Tensor, w: Any) -> Bounded:
        nope = w.query.shape[-1] - self.rope_dim
        query = self.rotate(self.query(x, w.query))
        latent = self.project("sbm,ml->sbl", Bounded.exact(x), w.latent)
        shared = self.project("sbm,mr->sbr", Bounded.exact(x), w.shared_key)
        shared = self.rotate(shared.moved(lambda t: t[:, :, None]))
        both = self.project("sbl,lhd->sbhd", latent, w.key_value)
        key = joined(both.moved(lambda t: t[..., :nope]), shared)
        value = both.moved(lambda t: t[..., nope:])
        scores = product("sbhd,tbhd->bhst", query, key).scaled(query.value.shape[-1] ** -0.5)
        heads = product("bhst,tbhv->sbhv", softmax(scores, causal(scores)), value)
        return self.project("sbhv,hvm->sbm", heads.rounded(self.dtype), w.output)

    def absorbed_mla(self, x: Tensor, w: Any) -> Bounded:
        nope = w.query.shape[-1] - self.rope_dim
        query = self.query(x, w.query)
        latent = self.project("sbm,ml->sbl", Bounded.exact(x), w.latent)
        shared = self.project("sbm,mr->sbr", Bounded.exact(x), w.shared_key)
        shared = self.rotate(shared.moved(lambda t: t[:, :, None])).moved(lambda t: t[:, :, 0])
        rope = self.rotate(query.moved(lambda t: t[..., nope:]))
        plain = query.moved(lambda t: t[..., :nope])
        absorbed = self.project("sbhn,lhn->sbhl", plain, w.key_value[..., :nope])
        scores = product("sbhl,tbl->bhst", absorbed, latent)
        scores = scores + product("sbhr,tbr->bhst", rope, shared)
        scores = scores.scaled(query.value.shape[-1] ** -0.5)
        mixed = product("bhst,tbl->sbhl", softmax(scores, causal(scores)), latent)
        value = w.key_value[..., nope:]
        heads = self.project("sbhl,lhv->sbhv", mixed.rounded(self.dtype), value)
        return self.project("sbhv,hvm->sbm", heads, w.output)

    def dsa_indexer(self, x: Tensor, w: Any, *_: int) -> Bounded:
        start = Bounded.exact(x)
        query = self.rotate(self.project("sbm,mhd->sbhd", start, w.query), rope_first=True)
        key = self.project("sbm,md->sbd", start, w.key).moved(lambda t: t[:, :, None])
        key = self.rotate(key, rope_first=True).moved(lambda t: t[:, :, 0])
        dots = product("sbhd,tbd->sbht", query, key).relu()
        head = self.project("sbm,mh->sbh", start, w.head)
        return product("sbh,sbht->bst", head, dots)

    def sparse_attention(self, x: Tensor, w: Any, _: int, indices: Tensor) -> Bounded:
        start = Bounded.exact(x)
        query = self.project("sbm,mhd->sbhd", start, w.query)
        latent = self.project("sbm,md->sbd", start, w.latent).moved(lambda t: t[:, :, None])
        query = self.rotate(query, remove_interleaving=True)
        latent = self.rotate(latent, remove_interleaving=True).moved(lambda t: t[:, :, 0])
        scores = product("sbhd,tbd->bhst", query, latent).scaled(query.value.shape[-1] ** -0.5)
        tokens = torch.arange(len(x))
        mask = (indices[..., None] == tokens).any(dim=-2)[:, None].expand_as(scores.value)
        heads = product("bhst,tbd->sbhd", softmax(scores, mask), latent).rounded(self.dtype)
        heads = self.rotate(heads, inverse=True, remove_interleaving=True)
        return self.project("sbhd,hdm->sbm", heads, w.output)


def joined(nope: Bounded, shared: Bounded) -> Bounded:
    """The key of every head."""
    rope = shared.moved(lambda t: t.expand(*nope.value.shape[:-1], -1))
    parts = zip((nope.value, nope.error), (rope.value, rope.error), strict=True)
    return Bounded(*(torch.cat(pair, dim=-1) for pair in parts))


def causal(scores: Bounded) -> Tensor:
    s, t = torch.meshgrid(*(torch.arange(n) for n in scores.value.shape[-2:]), indexing="ij")
    return (t <= s).expand_as(scores.value)


def expected(setup: Any, name: str, dtype: torch.dtype, native: bool = False) -> Bounded:
    x, weights, cos, sin, *extra = setup.arguments
    oracle = Oracle(dtype, cos, sin, cos.shape[-1], native)
    with torch.no_grad():
        return getattr(oracle, name)(x, weights, *extra)  # type: ignore[no-any-return]


# --- the rotations


def eager(t: Tensor, cos: Tensor, sin: Tensor, nope: int, rope: int, **flags: bool) -> Tensor:
    """A foreign rotation: every operation rounds to the storage dtype, as plain PyTorch does."""
    first = flags.pop("rope_first", False)
    kept, lanes = t.split([rope, nope][::-1] if not first else [rope, nope], dim=-1)
    kept, lanes = (lanes, kept) if first else (kept, lanes)
    turned = reference_rotation(
        lanes, cos.to(t.dtype), sin.to(t.dtype), 0, rope, compute_dtype=t.dtype, **flags
    )
    return torch.cat([turned, kept] if first else [kept, turned], dim=-1)


def eager_split(
    kv: Tensor, shared: Tensor, cos: Tensor, sin: Tensor, rope: int, k_dim: int, v_dim: int
) -> tuple[Tensor, Tensor]:
    k, v = kv.split([k_dim, v_dim], dim=-1)
    turned = eager(shared, cos, sin, 0, rope)
    return torch.cat([k, turned.expand(*k.shape[:-1], -1)], dim=-1), v


EAGER = RopeOps(eager, eager_split)
ATTENTIONS = ("mla", "absorbed_mla", "sparse_attention")


def share(output: Tensor, oracle: Bounded) -> float:
    """The largest share of its bound that any element uses."""
    return float(((output.detach().double() - oracle.value).abs() / oracle.error).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_low_precision_is_within_its_running_bound(
    consumer: Any, name: str, dtype: torch.dtype, seed: int
) -> None:
    setup = consumer(name, dtype, seed)
    assert share(setup.call(FUSED), expected(setup, name, dtype)) <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_foreign_rotation_is_within_its_running_bound(
    consumer: Any, name: str, dtype: torch.dtype
) -> None:
    """It rounds the table too, so the oracle takes the rounded one."""
    setup = consumer(name, dtype)
    x, weights, cos, sin, *extra = setup.arguments
    narrow = setup._replace(arguments=(x, weights, cos.to(dtype), sin.to(dtype), *extra))
    assert share(setup.call(EAGER), expected(narrow, name, dtype, native=True)) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mla", "absorbed_mla"])
def test_a_foreign_kernel_is_within_its_running_bound(
    consumer: Any, megatron: RopeOps, name: str, dtype: torch.dtype
) -> None:
    """A published Megatron-Core computes in float32, contracted or not, and rounds once."""
    setup = consumer(name, dtype, nope=8, value=4)
    out_of_place = megatron._replace(rotate=lambda t, *args: megatron.rotate(t.clone(), *args))
    assert share(setup.call(out_of_place), expected(setup, name, dtype)) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_wrong_position_is_beyond_the_bound(consumer: Any, name: str, dtype: torch.dtype) -> None:
    """The last query turned as if it stood one row earlier.

    In bfloat16 this one query may hide within the bound, which is why fused and unfused are
    compared bit for bit as well.
    """
    setup = consumer(name, dtype)
    oracle = expected(setup, name, dtype)

    def late(t: Tensor, cos: Tensor, sin: Tensor, *rest: int, **flags: bool) -> Tensor:
        rows = [0, 1, 2, 3, 4, 5, 5][: len(t)]
        wrong = rows if t.shape[2] > 1 and not flags.get("inverse") else list(range(len(t)))
        return fused_mla_rope_out_of_place(t, cos[wrong], sin[wrong], *rest, **flags)

    assert share(setup.call(FUSED), oracle) <= 1
    assert share(setup.call(FUSED._replace(rotate=late)), oracle) > 1


# --- the chosen tokens


def wrongly_chosen(indices: Tensor, oracle: Bounded) -> int:
    """Choices that the bound does not excuse.

    A score may be off by its bound, so the k-th one lies between the k-th largest of s - e and of
    s + e: a chosen token must reach the former, a passed-over one must not pass the latter.
    """
    allowed = causal(oracle)
    low = (oracle.value - oracle.error).masked_fill(~allowed, float("-inf"))
    high = (oracle.value + oracle.error).masked_fill(~allowed, float("-inf"))
    count = indices.shape[-1]
    picked = (indices[..., None] == torch.arange(oracle.value.shape[-1])).any(dim=-2)
    kth_low, kth_high = (x.topk(count).values[..., -1:] for x in (low, high))
    wrong = (picked & (~allowed | (high < kth_low))) | (~picked & allowed & (low > kth_high))
    return int(wrong.sum()) + int((picked.sum(-1) != allowed.sum(-1).clamp(max=count)).sum())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(5))
def test_another_token_is_chosen_only_within_the_bound(
    consumer: Any, dtype: torch.dtype, seed: int
) -> None:
    setup = consumer("dsa_indexer", dtype, seed)
    oracle = expected(setup, "dsa_indexer", dtype)
    scores, indices = setup.call(FUSED)
    allowed = causal(oracle)
    off = ((scores.double() - oracle.value).abs() - oracle.error)[allowed]
    assert (off <= 0).all()
    assert wrongly_chosen(indices, oracle) == 0


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "the worst instead of the best": lambda scores: (-scores).topk(3).indices,
    "a token of the future": lambda scores: scores.nan_to_num(neginf=1e6).topk(3).indices,
    "one token twice": lambda scores: scores.topk(3).indices[..., [0, 1, 1]],
    "too few": lambda scores: scores.topk(3).indices.masked_fill(torch.tensor([0, 0, 1]) > 0, -1),
}


@pytest.mark.parametrize("plant", WRONG)
def test_a_wrong_choice_is_seen(consumer: Any, plant: str) -> None:
    setup = consumer("dsa_indexer", torch.bfloat16)
    oracle = expected(setup, "dsa_indexer", torch.bfloat16)
    scores, _ = setup.call(FUSED)
    assert wrongly_chosen(WRONG[plant](scores.detach()), oracle) > 0


def test_rotating_the_wrong_lanes_of_the_indexer_is_seen(consumer: Any) -> None:
    """Trailing lanes, where the indexer has its rope lanes first."""
    setup = consumer("dsa_indexer", torch.bfloat16)
    oracle = expected(setup, "dsa_indexer", torch.bfloat16)

    def trailing(*args: Any, **flags: Any) -> Tensor:
        return fused_mla_rope_out_of_place(*args, **flags | {"rope_first": False})

    scores, _ = setup.call(FUSED._replace(rotate=trailing))
    off = ((scores.double() - oracle.value).abs() - oracle.error)[causal(oracle)]
    assert (off > 0).any()
