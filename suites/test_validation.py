"""Values on the device: read inside ``validation()`` only, refused as the reference does."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from parity.kernels.checks import check_positions
from parity.kernels.concat import fused_mla_rope_concat
from parity.kernels.dispatch import apply_rotary_pos_emb
from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.legacy import fused_apply_mla_rope_for_kv, fused_apply_mla_rope_for_q
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.kernels.validation import validation
from parity.reference.positions import look_up_tables
from parity.runner import device


@dataclass
class Pack:
    """The positions of a THD tensor: legal, or with one number moved by a little."""

    starts: list[int]
    padded: list[int] | None
    ids: list[int] | None
    tokens: int
    cp_rank: int
    cp_size: int
    length: int
    whole_pack: bool


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    size = draw(st.sampled_from([1, 1, 2, 4]))
    rank = draw(st.integers(0, size - 1))
    unit = 1 if size == 1 else 2 * size
    lengths = draw(st.lists(st.integers(0, 3).map(lambda n: n * unit), max_size=3))
    rooms = [length + draw(st.sampled_from([0, 0, size])) for length in lengths]
    starts, places = ([0, *accumulate(steps)] for steps in (lengths, rooms))
    padded = places if places != starts or draw(st.booleans()) else None
    tokens = (padded or starts)[-1] // size + draw(st.sampled_from([0, 0, 1]))
    ids = draw(st.none() | st.lists(st.integers(0, 5), min_size=tokens, max_size=tokens))
    whole_pack = draw(st.booleans())
    pack = Pack(starts, padded, ids, tokens, rank, size, 0, whole_pack)
    pack.length = draw(st.integers(0, 2)) + next(n for n in count() if not refuses(pack, n))
    item = draw(st.sampled_from(["nothing", "length", "tokens", "starts", "padded", "ids"]))
    by = draw(st.sampled_from([-size, -1, 1, size]))
    if item in ("length", "tokens"):
        if ids is None or item == "length":
            setattr(pack, item, max(0, getattr(pack, item) + by))
    elif getattr(pack, item, None):
        numbers = list(getattr(pack, item))
        numbers[draw(st.integers(0, len(numbers) - 1))] += by
        setattr(pack, item, numbers)
    return pack


def refuses(pack: Pack, length: int) -> bool:
    """Whether the reference refuses the pack with tables of ``length`` rows."""
    packing = [integers(item) for item in (pack.starts, pack.padded, pack.ids)]
    table, shape = torch.zeros(length, 2), torch.Size([pack.tokens, 1, 2])
    ranks = pack.cp_rank, pack.cp_size, pack.whole_pack
    return refused(lambda: look_up_tables(table, table, shape, 2, *packing, *ranks))


def integers(numbers: list[int] | None) -> Tensor | None:
    return None if numbers is None else torch.tensor(numbers, dtype=torch.int32)


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False


@settings(max_examples=500)
@example(Pack([0, 2], None, None, 1, 0, 2, 4, False))  # divisible by cp_size, not by twice it
@example(Pack([0, 2], [0, 1], None, 1, 0, 1, 4, False))  # one row too few for a sequence
@example(Pack([0, 2, 4], None, None, 4, 0, 1, 3, True))  # a table short by the pack's last row
@example(Pack([0, 1, 2], None, None, 2, 0, 1, 1, True))  # which a sequence of one token uses
@example(Pack([0, 24], None, None, 6, 1, 4, 20, False))  # short by the last row of a rank
@given(packs())
def test_kernels_refuse_exactly_what_the_reference_refuses(pack: Pack) -> None:
    packing = [integers(item) for item in (pack.starts, pack.padded, pack.ids)]
    t, ranks = torch.zeros(pack.tokens, 1, 2), (pack.cp_rank, pack.cp_size, pack.whole_pack)
    with validation():
        kernels = refused(lambda: check_positions(t, pack.length, *packing, *ranks))
    assert kernels == refuses(pack, pack.length)


def call(op: Callable[..., Any], cu_seqlens: list[int], length: int) -> Any:
    """A call of ``op`` on 4 tokens, 2 heads, 2 kept and 2 rotated lanes."""
    packing = torch.tensor(cu_seqlens, dtype=torch.int32, device=device())
    table = torch.ones(length, 2, device=device())

    def data(heads: int, lanes: int) -> Tensor:
        return torch.ones(4, heads, lanes, device=device(), requires_grad=True) * 1

    if op is apply_rotary_pos_emb:
        config = SimpleNamespace(
            apply_rope_fusion=True, rope_type="rope", rotary_interleaved=False,
            rotary_percent=1.0, multi_latent_attention=True,
        )  # fmt: skip
        return op(data(2, 4), table[:, None, None], config, packing, mla_rotary_interleaved=None)
    if op is fused_mla_rope_concat:
        return op(data(2, 2), data(2, 2), table, table, packing)
    if op in (fused_mla_rope_kv_split, fused_apply_mla_rope_for_kv):
        return op(data(2, 4), data(1, 2), table, table, 2, 2, 2, packing)
    return op(data(2, 4), table, table, 2, 2, packing)


OPS = [
    fused_mla_rope_inplace, fused_mla_rope_out_of_place, fused_mla_rope_kv_split,
    fused_mla_rope_concat, fused_apply_mla_rope_for_q, fused_apply_mla_rope_for_kv,
    apply_rotary_pos_emb,
]  # fmt: skip
BAD = {
    "from 0": ([1, 4], 4),
    "rise in steps": ([0, 3, 2, 4], 4),
    "at least 9 tokens": ([0, 4, 9], 9),
    "table's length 2": ([0, 1, 4], 2),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("sentence", BAD)
def test_every_op_reads_values_inside_the_switch_only(op: Any, sentence: str) -> None:
    switches: list[tuple[AbstractContextManager[None], bool]] = [
        (nullcontext(), False), (validation(), True), (nullcontext(), False)
    ]  # fmt: skip
    for switch, checked in switches:
        with switch, pytest.raises(ValueError, match=sentence) if checked else nullcontext():
            call(op, *BAD[sentence])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("default", ["cpu", "meta"])
def test_a_good_call_passes_validation(op: Any, default: str) -> None:
    """Forward and backward, whatever the default device."""
    with validation(), torch.device(default):
        found = call(op, [0, 1, 1, 4], 3)
        outputs = found if isinstance(found, tuple) else (found,)
        sum(output.sum() for output in outputs).backward()
