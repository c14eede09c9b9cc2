"""Values on the device: read inside ``validation()`` only, refused as the reference does."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
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

offsets = st.lists(st.integers(-1, 12), min_size=1, max_size=4)
rising = st.lists(st.sampled_from([0, 0, 1, 2, 4, 8]), max_size=3).map(
    lambda steps: [sum(steps[:n]) for n in range(len(steps) + 1)]
)


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False


@given(
    starts=offsets | rising,
    padded=st.none() | offsets | rising,
    ids=st.none() | st.lists(st.integers(-1, 6), max_size=6),
    tokens=st.integers(0, 16),
    rank_of=st.sampled_from([(0, 1), (0, 2), (1, 2), (3, 4)]),
    length=st.integers(0, 9),
    whole_pack=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_kernels_refuse_exactly_what_the_reference_refuses(
    starts: list[int],
    padded: list[int] | None,
    ids: list[int] | None,
    tokens: int,
    rank_of: tuple[int, int],
    length: int,
    whole_pack: bool,
    dtype: torch.dtype,
) -> None:
    tokens = tokens if ids is None else len(ids)
    packing = [None if v is None else torch.tensor(v, dtype=dtype) for v in (starts, padded, ids)]
    t, table = torch.zeros(tokens, 1, 2), torch.zeros(length, 2)
    if padded is not None and len(padded) != len(starts):
        return  # a length, which is always checked
    with validation():
        kernels = refused(lambda: check_positions(t, length, *packing, *rank_of, whole_pack))
    reference = refused(
        lambda: look_up_tables(table, table, t.shape, 2, *packing, *rank_of, whole_pack)
    )
    assert kernels == reference


def call(op: Callable[..., Any], cu_seqlens: list[int], length: int) -> Any:
    """A call of ``op`` on 4 tokens, 2 heads, 2 kept and 2 rotated lanes."""
    packing = torch.tensor(cu_seqlens, dtype=torch.int32, device=device())
    table = torch.ones(length, 2, device=device())

    def data(heads: int, lanes: int) -> Tensor:
        return torch.ones(4, heads, lanes, device=device())

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
def test_a_good_call_passes_validation(op: Any) -> None:
    with validation():
        call(op, [0, 1, 1, 4], 3)
