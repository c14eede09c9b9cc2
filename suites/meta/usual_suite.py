"""A hand-written suite of the usual kind, against which `parity mutate` is measured.

A dozen parametrised `assert_close` tests: bf16, 32 heads, one pack, one tile, contiguous tensors, a
tolerance that was found to pass.  No test of ours: `parity mutate --suite` runs it on mutants.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parity.kernels.concat import fused_mla_rope_concat
from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.legacy import fused_apply_mla_rope_for_kv, fused_apply_mla_rope_for_q
from parity.kernels.out_of_place import fused_mla_rope_out_of_place

HEADS, NOPE, ROPE, VALUE, SEQ, BATCH = 32, 16, 8, 16, 128, 2  # lanes: few, for the CPU tier
PACK = [0, 27, 54, 99, 128]
TOLERANCE = {"rtol": 2e-2, "atol": 5e-2}
LAYOUTS = pytest.mark.parametrize("layout", ["sbhd", "thd"])


def tables() -> tuple[Tensor, Tensor]:
    """bf16 tables [SEQ, 1, 1, ROPE] whose halves are equal, as a model makes them."""
    rates = 10000 ** -(torch.arange(0, ROPE, 2) / ROPE)
    angles = torch.outer(torch.arange(SEQ), rates).repeat(1, 2)[:, None, None]
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def data(layout: str, heads: int, lanes: int, seed: int = 0) -> Tensor:
    """Normal numbers, [S, B, H, D] or [T, H, D], a result of an operation."""
    lead = (SEQ, BATCH) if layout == "sbhd" else (SEQ,)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, heads, lanes, generator=generator).bfloat16()


def pack(layout: str) -> Tensor | None:
    return torch.tensor(PACK, dtype=torch.int32) if layout == "thd" else None


def rotated(x: Tensor, layout: str, inverse: bool = False, interleaved: bool = False) -> Tensor:
    """The rope lanes of every head rotated, written the slow way."""
    cos, sin = tables()
    if layout == "thd":
        starts = pairwise(PACK)
        rows = torch.cat([torch.arange(end - start) for start, end in starts])
        cos, sin = cos[rows, 0], sin[rows, 0]
    if inverse:
        sin = -sin
    even, odd = x[..., 0::2], x[..., 1::2]
    half = ROPE // 2
    left = even * cos[..., :half] - odd * sin[..., :half]
    right = odd * cos[..., half:] + even * sin[..., half:]
    if interleaved:
        return torch.stack([left, right], dim=-1).flatten(-2)
    return torch.cat([left, right], dim=-1)


def agree(
    fused: Callable[..., Tensor | tuple[Tensor, ...]],
    plain: Callable[..., Tensor | tuple[Tensor, ...]],
    *inputs: Tensor,
) -> None:
    """Outputs and gradients of both within the tolerance."""
    found = []
    for function in (fused, plain):
        leaves = [x.clone().requires_grad_() for x in inputs]
        result = function(*(leaf * 1 for leaf in leaves))
        outputs = result if isinstance(result, tuple) else (result,)
        grads = [torch.randn(o.shape, generator=torch.Generator().manual_seed(7)) for o in outputs]
        torch.autograd.backward(outputs, [g.to(o) for g, o in zip(grads, outputs, strict=True)])
        found.append((*outputs, *(leaf.grad for leaf in leaves)))
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, **TOLERANCE)


def keep_nope(x: Tensor, layout: str, **flags: bool) -> Tensor:
    nope, rope = x.split([NOPE, ROPE], dim=-1)
    return torch.cat([nope, rotated(rope, layout, **flags)], dim=-1)


@LAYOUTS
@pytest.mark.parametrize("fused", [fused_mla_rope_inplace, fused_mla_rope_out_of_place])
@pytest.mark.parametrize("inverse", [False, True])
def test_rotation(layout: str, fused: Callable[..., Tensor], inverse: bool) -> None:
    cos, sin = tables()
    agree(
        lambda t: fused(t, cos, sin, NOPE, ROPE, pack(layout), inverse=inverse),
        lambda t: keep_nope(t, layout, inverse=inverse),
        data(layout, HEADS, NOPE + ROPE),
    )


@pytest.mark.parametrize("fused", [fused_mla_rope_inplace, fused_mla_rope_out_of_place])
def test_rotation_that_stays_interleaved(fused: Callable[..., Tensor]) -> None:
    cos, sin = tables()
    agree(
        lambda t: fused(t, cos, sin, NOPE, ROPE, remove_interleaving=True),
        lambda t: keep_nope(t, "sbhd", interleaved=True),
        data("sbhd", HEADS, NOPE + ROPE),
    )


def test_rotation_of_the_first_lanes() -> None:
    cos, sin = tables()
    agree(
        lambda t: fused_mla_rope_out_of_place(t, cos, sin, NOPE, ROPE, rope_first=True),
        lambda t: torch.cat([rotated(t[..., :ROPE], "sbhd"), t[..., ROPE:]], dim=-1),
        data("sbhd", HEADS, NOPE + ROPE),
    )


@LAYOUTS
def test_query_by_its_old_name(layout: str) -> None:
    cos, sin = tables()
    agree(
        lambda t: fused_apply_mla_rope_for_q(t, cos, sin, NOPE, ROPE, pack(layout)),
        lambda t: keep_nope(t, layout),
        data(layout, HEADS, NOPE + ROPE),
    )


@LAYOUTS
@pytest.mark.parametrize("fused", [fused_mla_rope_kv_split, fused_apply_mla_rope_for_kv])
def test_key_and_value(layout: str, fused: Callable[..., tuple[Tensor, Tensor]]) -> None:
    cos, sin = tables()

    def plain(kv: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        key, value = kv.split([NOPE, VALUE], dim=-1)
        turned = rotated(shared, layout).expand(*key.shape[:-1], -1)
        return torch.cat([key, turned], dim=-1), value

    agree(
        lambda kv, shared: fused(kv, shared, cos, sin, ROPE, NOPE, VALUE, pack(layout)),
        plain,
        data(layout, HEADS, NOPE + VALUE),
        data(layout, 1, ROPE, seed=1),
    )


@LAYOUTS
@pytest.mark.parametrize("inverse", [False, True])
def test_concat(layout: str, inverse: bool) -> None:
    cos, sin = tables()
    agree(
        lambda nope, rope: fused_mla_rope_concat(
            nope, rope, cos, sin, pack(layout), inverse=inverse
        ),
        lambda nope, rope: torch.cat([nope, rotated(rope, layout, inverse=inverse)], dim=-1),
        data(layout, HEADS, NOPE),
        data(layout, HEADS, ROPE, seed=1),
    )


def test_query_inverse_undoes_it() -> None:
    cos, sin = tables()
    t = data("sbhd", HEADS, NOPE + ROPE)
    flags = {"remove_interleaving": True}
    there = fused_mla_rope_out_of_place(t, cos, sin, NOPE, ROPE, **flags)
    back = fused_mla_rope_out_of_place(there, cos, sin, NOPE, ROPE, inverse=True, **flags)
    assert_close(back, t, **TOLERANCE)


def test_a_narrow_table_is_refused() -> None:
    cos, sin = (table[..., : ROPE // 2] for table in tables())
    with pytest.raises(ValueError, match="wide"):
        fused_mla_rope_inplace(data("sbhd", HEADS, NOPE + ROPE), cos, sin, NOPE, ROPE)
