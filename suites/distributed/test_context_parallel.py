"""Context parallelism: what the ranks of a group compute, put together, is the unsharded answer.

Every rank cuts its zigzag shard out of the whole inputs, runs the fused op on it, forward and
backward, and gathers what all ranks have.  The unsharded answer is the reference's, bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from parity.comparators import same_bits
from parity.kernels import concat, dispatch, inplace, kv_split, legacy, out_of_place
from parity.kernels.tables import Yarn, cos_sin, freqs
from parity.reference import concat as plain_concat
from parity.reference import kv_split as plain_kv_split
from parity.reference import out_of_place as plain
from parity.runner import device

HEADS, NOPE, ROPE, VALUE = 3, 5, 4, 6
LENGTHS = (16, 0, 8, 24)  # divisible by twice the largest group
ROOMS = (24, 8, 8, 40)  # what each has with its padding, so divisible, too
TAIL = 4  # rows of no sequence
SEQ, BATCH = 16, 2
PLAIN = ("sbhd", "thd")
TABLE = Yarn(ROPE, scaling_factor=40.0)


@dataclass(frozen=True)
class Positions:
    """The rows that a call works on: all of them, or the shard of a rank.

    The layout is "sbhd", "thd", "padded" (THD whose sequences lie apart) or "ids" (THD whose tokens
    say themselves where they are).
    """

    layout: str
    rank: int = 0
    size: int = 1

    @property
    def packing(self) -> dict[str, Any]:
        """Arguments of an op; in SBHD the table is this rank's already."""
        if self.layout == "sbhd":
            return {}
        packing = {"cu_seqlens": offsets(LENGTHS), "cp_rank": self.rank, "cp_size": self.size}
        if self.layout == "padded":
            packing["cu_seqlens_padded"] = offsets(ROOMS)
        if self.layout == "ids":
            packing["position_ids"] = self.ids()
        return packing

    def tables(self) -> tuple[Tensor, Tensor]:
        return cos_sin(TABLE, self._length(), device=device(), **self._sliced())

    def angles(self) -> Tensor:
        return freqs(TABLE, self._length(), device=device(), **self._sliced())

    def ids(self) -> Tensor:
        """The positions of the tokens, which no two ranks have alike and no sequence gives."""
        rows = rows_of(self.layout, self.rank, self.size)
        return rows.to(torch.int32) * 7 % self._length()

    def _length(self) -> int:
        return SEQ if self.layout == "sbhd" else max(ROOMS)

    def _sliced(self) -> dict[str, int]:
        return {"cp_rank": self.rank, "cp_size": self.size} if self.layout == "sbhd" else {}


def offsets(steps: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *accumulate(steps)], dtype=torch.int32, device=device())


Call = Callable[[Positions, dict[str, Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Op:
    """An op on named inputs, each of so many heads and lanes, and the reference that answers."""

    inputs: dict[str, tuple[int, int]]
    fused: Call
    reference: Call
    layouts: tuple[str, ...] = PLAIN


def rotation(op: Any, at: Positions, x: dict[str, Tensor], **flags: bool) -> tuple[Tensor, ...]:
    packing = at.packing
    packing["cu_seqlens_q"] = packing.pop("cu_seqlens", None)
    # a leaf cannot be written in place, and neither can what a caller still needs
    return (op(x["t"].clone(), *at.tables(), NOPE, ROPE, **packing, **flags),)


def split(op: Any, at: Positions, x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    packing = at.packing
    packing["cu_seqlens_kv"] = packing.pop("cu_seqlens", None)
    outputs: tuple[Tensor, ...] = op(
        x["kv"], x["k_pos_emb"], *at.tables(), ROPE, NOPE, VALUE, **packing
    )
    return outputs


def joined(op: Any, at: Positions, x: dict[str, Tensor], **flags: bool) -> tuple[Tensor, ...]:
    return (op(x["nope"], x["rope"], *at.tables(), **at.packing, **flags),)


def dispatched(at: Positions, x: dict[str, Tensor], *, fusion: bool) -> tuple[Tensor, ...]:
    """The dispatcher takes the group itself; only its rank and size matter."""
    config = dispatch.RopeConfig(apply_rope_fusion=fusion)
    group = SimpleNamespace(rank=lambda: at.rank, size=lambda: at.size)
    return by_group(at, x, config, group)


def by_group(at: Positions, x: dict[str, Tensor], config: Any, group: Any) -> tuple[Tensor, ...]:
    rotate = dispatch.apply_rotary_pos_emb
    starts = at.packing.get("cu_seqlens")
    arguments = (x["t"], at.angles(), config, starts)
    return (rotate(*arguments, cp_group=group, mla_rotary_interleaved=True),)


def undispatched(at: Positions, x: dict[str, Tensor]) -> tuple[Tensor, ...]:
    angles = at.angles()
    tables = (f(angles).to(x["t"].dtype) for f in (torch.cos, torch.sin))
    op = plain.fused_mla_rope_out_of_place
    return (op(x["t"], *tables, NOPE, ROPE, at.packing.get("cu_seqlens"), rope_first=True),)


ONE = {"t": (HEADS, NOPE + ROPE)}
TWO = {"kv": (HEADS, NOPE + VALUE), "k_pos_emb": (1, ROPE)}
PARTS = {"nope": (HEADS, NOPE), "rope": (HEADS, ROPE)}
ROTATE = plain.fused_mla_rope_out_of_place
SPLIT = partial(split, plain_kv_split.fused_mla_rope_kv_split)
BACK = {"inverse": True, "remove_interleaving": True}
PADDED, ALL = (*PLAIN, "padded"), (*PLAIN, "padded", "ids")
OPS = {
    "in place": Op(
        ONE, partial(rotation, inplace.fused_mla_rope_inplace), partial(rotation, ROTATE), ALL
    ),
    "out of place": Op(
        ONE,
        partial(rotation, out_of_place.fused_mla_rope_out_of_place, **BACK),
        partial(rotation, ROTATE, **BACK),
        ALL,
    ),
    "split": Op(TWO, partial(split, kv_split.fused_mla_rope_kv_split), SPLIT, PADDED),
    "concat": Op(
        PARTS,
        partial(joined, concat.fused_mla_rope_concat),
        partial(joined, plain_concat.fused_mla_rope_concat),
        ALL,
    ),
    "legacy query": Op(
        ONE, partial(rotation, legacy.fused_apply_mla_rope_for_q), partial(rotation, ROTATE)
    ),
    "legacy key and value": Op(TWO, partial(split, legacy.fused_apply_mla_rope_for_kv), SPLIT),
    "dispatcher, fused": Op(ONE, partial(dispatched, fusion=True), undispatched),
    "dispatcher, unfused": Op(ONE, partial(dispatched, fusion=False), undispatched),
}


# --- shards


def rows_of(layout: str, rank: int, size: int) -> Tensor:
    """The rows of a zigzag shard in the whole: chunk ``rank`` of every sequence and, counted from
    its end, chunk ``rank`` again (Megatron-Core's context parallelism); of padding, an equal part.
    """
    places = [0, *accumulate(_rooms(layout))]
    kept = []
    for (start, end), length in zip(pairwise(places), _lengths(layout), strict=True):
        chunks = torch.arange(start, start + length).chunk(2 * size)
        kept += [chunks[rank], chunks[-1 - rank]]
        kept.append(torch.arange(start + length, end).chunk(size)[rank])
    kept.append(torch.arange(places[-1], rows(layout)[0]).chunk(size)[rank])
    return torch.cat(kept).to(device())


def _lengths(layout: str) -> tuple[int, ...]:
    return (SEQ,) if layout == "sbhd" else LENGTHS


def _rooms(layout: str) -> tuple[int, ...]:
    return ROOMS if layout == "padded" else _lengths(layout)


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device(), dtype)


def rows(layout: str) -> tuple[int, ...]:
    if layout == "sbhd":
        return SEQ, BATCH
    return (sum(_rooms(layout)) + TAIL * (layout == "padded"),)


def run(
    call: Call, at: Positions, inputs: dict[str, Tensor], seed: int, shard: Any
) -> list[Tensor]:
    """Outputs, then gradients, of one call on the shard of everything."""
    leaves = {name: t[shard].clone().requires_grad_() for name, t in inputs.items()}
    outputs = call(at, leaves)
    lead = rows(at.layout)
    grads = [
        random((*lead, *out.shape[len(lead) :]), seed + 100 + i, out.dtype)[shard]
        for i, out in enumerate(outputs)
    ]
    return [
        *(o.detach() for o in outputs),
        *torch.autograd.grad(outputs, [*leaves.values()], grads),
    ]


def differing(op: Op, layout: str, dtype: torch.dtype, group: Any, **wrong: Any) -> list[int]:
    """Which of the results, put together from all ranks, are not those of the unsharded op.

    ``wrong`` takes another ``fused`` call, or says that this rank is ``at`` another place.
    """
    seed = 10 * group.index
    inputs = {
        name: random((*rows(layout), *shape), seed + i, dtype)
        for i, (name, shape) in enumerate(op.inputs.items())
    }
    at = wrong.get("at", Positions(layout, group.rank, group.size))
    shards = [rows_of(layout, rank, group.size) for rank in range(group.size)]
    mine = run(wrong.get("fused", op.fused), at, inputs, seed, shards[group.rank])
    whole = run(op.reference, Positions(layout), inputs, seed, slice(None))
    found = []
    for i, (part, expected) in enumerate(zip(mine, whole, strict=True)):
        actual = torch.full_like(expected, torch.nan)
        actual[torch.cat(shards)] = torch.cat(group.gathered(part))
        if same_bits(actual=actual, expected=expected):
            found.append(i)
    return found


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name, op in OPS.items() for layout in op.layouts]
)
def test_the_shards_are_the_whole(group: Any, name: str, layout: str) -> None:
    assert differing(OPS[name], layout, torch.bfloat16, group) == []


# --- a group made at run time


def test_the_group_of_the_call_counts(group_of: Any) -> None:
    """The configuration and the process know another size; and sizes change from call to call."""
    sizes = [size for size in (4, 1, 2, 4) if torch.distributed.get_world_size() % size == 0]
    for size in sizes:
        group = group_of(size)
        op = OPS["dispatcher, fused"]
        assert differing(op, "thd", torch.bfloat16, group, fused=with_static_size(group)) == []


def with_static_size(group: Any) -> Call:
    """The dispatcher under a configuration that names the size of the whole world."""
    static = torch.distributed.get_world_size()
    config = SimpleNamespace(
        **vars(dispatch.RopeConfig(apply_rope_fusion=True)), context_parallel_size=static
    )
    return lambda at, x: by_group(at, x, config, group.process_group)


def test_the_group_of_the_world_is_the_wrong_one(group_of: Any) -> None:
    """The mistake: rank and size of the static group, in a group of half its size."""
    world = torch.distributed.get_world_size()
    if world == 1:
        pytest.skip("NOT_RUN: one rank forms no group of another size")
    static = group_of(world)
    at = Positions("thd", static.rank, static.size)
    op = OPS["out of place"]
    assert differing(op, "thd", torch.float32, group_of(world // 2), at=at) == [0, 1]


# --- planted mistakes


@pytest.mark.parametrize("mistake", ["ranks in reverse", "no rank at all"])
@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_a_wrong_mapping_of_ranks_is_seen(group: Any, layout: str, mistake: str) -> None:
    """In outputs and gradients alike, and on every rank; a group of one has no other mapping."""
    rank = group.size - 1 - group.rank if mistake == "ranks in reverse" else 0
    at = Positions(layout, rank, group.size)
    expected = [0, 1] if group.size > 1 else []
    assert differing(OPS["in place"], layout, torch.float32, group, at=at) == expected


@dataclass(frozen=True)
class Mistaken(Positions):
    """A rank that packs its call wrongly."""

    mistake: str = ""

    @property
    def packing(self) -> dict[str, Any]:
        packing = super().packing
        padded, ids = (packing.pop(name, None) for name in ("cu_seqlens_padded", "position_ids"))
        if padded is not None and self.mistake == "padding counts":
            packing["cu_seqlens"] = padded
        if ids is not None and self.mistake == "ids of another rank":
            packing["position_ids"] = Positions(self.layout, 0, self.size).ids()
        return packing


@pytest.mark.parametrize(
    ("layout", "mistake", "seen_alone"),
    [
        ("padded", "no padding", True),
        ("padded", "padding counts", True),
        ("ids", "no ids", True),
        ("ids", "ids of another rank", False),
    ],
)
@pytest.mark.parametrize("name", ["in place", "out of place"])
def test_a_wrong_packing_is_seen_where_there_is_one(
    group: Any, name: str, layout: str, mistake: str, seen_alone: bool
) -> None:
    """Packs without padding and ids do not see it; one rank alone has the ids of all."""

    def wrong(layout: str) -> list[int]:
        at = Mistaken(layout, group.rank, group.size, mistake)
        return differing(OPS[name], layout, torch.float32, group, at=at)

    assert wrong(layout) == ([0, 1] if seen_alone or group.size > 1 else [])
    assert wrong("thd") == []
