"""Bugs inside of kernels, planted in small ones: ours have no head tiles, races or autotuner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.reference.out_of_place import fused_mla_rope_out_of_place as reference
from parity.verdict import Verdict

from .bug import IN_PLACE, ROTATE, SPLIT, plant

PACKED = replace(
    ROTATE,
    layouts=("thd",),
    flags={},
    thd_flags={},
    tiles={},
    cp_sizes=(1,),
    inputs=tuple(
        item for item in ROTATE.inputs if item.name not in ("cu_seqlens_padded", "position_ids")
    ),
)


@triton.jit
def pack_kernel(
    T, OUT, COS, SIN, CU, tokens, heads, nope, rope, sequences,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, LANES: tl.constexpr, ABSENT: tl.constexpr,
    TOKEN_MASK: tl.constexpr, HEAD_MASK: tl.constexpr,
):  # fmt: skip
    """Copy nope lanes and rotate pairs into halves, TOKENS by HEADS rows a program.

    ABSENT is the table row of tokens behind the last sequence; the masks say what is left out.
    """
    row = tl.arange(0, TOKENS * HEADS)
    token = tl.program_id(0) * TOKENS + row // HEADS
    head = tl.program_id(1) * HEADS + row % HEADS
    live = row >= 0
    if TOKEN_MASK:
        live = live & (token < tokens)
    if HEAD_MASK == "global":
        live = live & (head < heads)
    if HEAD_MASK == "local":
        live = live & (row % HEADS < heads)
    position = tl.zeros_like(row) + ABSENT
    for sequence in range(sequences):
        start = tl.load(CU + sequence).to(tl.int32)
        end = tl.load(CU + sequence + 1).to(tl.int32)
        position = tl.where((token >= start) & (token < end), token - start, position)

    lane = tl.arange(0, LANES)[None, :]
    at = ((token * heads + head) * (nope + rope))[:, None]
    kept = live[:, None] & (lane < nope)
    tl.store(OUT + at + lane, tl.load(T + at + lane, mask=kept), mask=kept)
    pairs = live[:, None] & (lane < rope // 2)
    first = tl.load(T + at + nope + 2 * lane, mask=pairs).to(tl.float32)
    second = tl.load(T + at + nope + 2 * lane + 1, mask=pairs).to(tl.float32)
    here = (position * rope)[:, None] + lane
    cos_left, cos_right = (
        tl.load(COS + here, mask=pairs),
        tl.load(COS + here + rope // 2, mask=pairs),
    )
    sin_left, sin_right = (
        tl.load(SIN + here, mask=pairs),
        tl.load(SIN + here + rope // 2, mask=pairs),
    )
    left = first * cos_left - second * sin_left
    right = second * cos_right + first * sin_right
    dtype = OUT.dtype.element_ty
    tl.store(OUT + at + nope + lane, left.to(dtype), mask=pairs)
    tl.store(OUT + at + nope + rope // 2 + lane, right.to(dtype), mask=pairs)


class _Packed(torch.autograd.Function):
    """The kernel, with the backward of the reference: what is planted lies in forward."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, a: dict[str, Any], how: dict[str, Any]) -> Tensor:
        ctx.arguments = a
        out = torch.empty_like(t)
        tokens, heads, _ = t.shape
        switches = {"ABSENT": 0, "TOKEN_MASK": True, "HEAD_MASK": "global"} | how
        grid = (triton.cdiv(tokens, 4), triton.cdiv(heads, 4))
        pack_kernel[grid](
            t, out, a["cos"], a["sin"], a["cu_seqlens_q"],
            tokens, heads, a["nope_dim"], a["emb_dim"], len(a["cu_seqlens_q"]) - 1,
            TOKENS=4, HEADS=4, LANES=triton.next_power_of_2(max(a["nope_dim"], a["emb_dim"] // 2)),
            enable_fp_fusion=False, **switches,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gradient(grads[0], ctx.arguments), None, None


def _gradient(grad: Tensor, arguments: dict[str, Any]) -> Tensor:
    """What the reference passes back."""
    with torch.enable_grad():
        t = torch.zeros_like(grad, requires_grad=True)
        output = reference(**arguments | {"t": t})
    return torch.autograd.grad(output, t, grad)[0]


def packed(t: Tensor, cos: Tensor, sin: Tensor, nope_dim: int, emb_dim: int,
           cu_seqlens_q: Tensor, guarded: bool = True, **how: Any) -> Tensor:  # fmt: skip
    """The small kernel, honest unless ``how`` says otherwise."""
    if guarded and cos.shape[-1] != emb_dim:
        raise ValueError(f"Expected tables of width {emb_dim} but got {cos.shape[-1]}.")
    arguments = {"cos": cos, "sin": sin, "cu_seqlens_q": cu_seqlens_q}
    return _Packed.apply(t, arguments | {"nope_dim": nope_dim, "emb_dim": emb_dim}, how)


@plant(PACKED, "guards", "forward", layout="thd", axes={"heads": 6}, twin=packed)
def masks_heads_within_the_tile(**arguments: Any) -> Tensor:
    """A tile of heads that does not divide them is masked by the head within the tile."""
    return packed(**arguments, HEAD_MASK="local")


@plant(PACKED, "guards", "forward", layout="thd", lengths=(3, 3), twin=packed)
def masks_no_rows(**arguments: Any) -> Tensor:
    """The last program has fewer rows than its tile and writes them all."""
    return packed(**arguments, TOKEN_MASK=False)


@plant(PACKED, "values", "output", layout="thd", tail=2, twin=packed)
def finds_no_sequence(**arguments: Any) -> Tensor:
    """Rows behind the last sequence keep the index -1 of the search, and read before the table."""
    return packed(**arguments, ABSENT=-1)


NARROW = replace(PACKED, refuses=("narrow_table",))


@plant(NARROW, "refuses:narrow_table", "forward", layout="thd", twin=packed)
def reads_past_a_narrow_table(**arguments: Any) -> Tensor:
    """The kernel takes the table for as wide as the rotated lanes, and nobody compares."""
    return packed(**arguments, guarded=False)


@triton.jit
def split_kernel(KV, KEY, VALUE, K_DIM: tl.constexpr, V_DIM: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, K_DIM)
    tl.store(KEY + row * K_DIM + lane, tl.load(KV + row * (K_DIM + V_DIM) + lane))
    lane = tl.arange(0, V_DIM)
    tl.store(VALUE + row * V_DIM + lane, tl.load(KV + row * (K_DIM + V_DIM) + K_DIM + lane))


def _splits_by_arange(**arguments: Any) -> tuple[Tensor, Tensor]:
    kv, k_dim, v_dim = arguments["kv"], arguments["k_dim"], arguments["v_dim"]
    rows = kv.numel() // kv.shape[-1]
    key, value = (
        torch.empty(rows, width, dtype=kv.dtype, device=kv.device) for width in (k_dim, v_dim)
    )
    split_kernel[(rows,)](kv.detach(), key, value, K_DIM=k_dim, V_DIM=v_dim)
    return fused_mla_rope_kv_split(**arguments)


@plant(SPLIT, "runs", "forward", axes={"k_dim": 33, "v_dim": 2})
def needs_a_power_of_two(**arguments: Any) -> tuple[Tensor, Tensor]:
    """`tl.arange` over the raw number of lanes does not compile unless that is a power of two."""
    return _splits_by_arange(**arguments)


@plant(SPLIT, "runs", "forward", axes={"k_dim": 2, "v_dim": 0})
def needs_a_value(**arguments: Any) -> tuple[Tensor, Tensor]:
    """`tl.arange` over no lanes does not compile."""
    return _splits_by_arange(**arguments)


# --- races, which the CPU tier knows from the accesses alone

DENSE = replace(
    IN_PLACE,
    layouts=("sbhd",),
    flags={"remove_interleaving": (False,)},
    axes={**IN_PLACE.axes, "rope_dim": (2, 4, 8, 16, 64)},
    tiles={},
    inputs=tuple(replace(item, strides=("contiguous",)) for item in IN_PLACE.inputs[:3]),
)


@triton.jit
def turn(first, second, COS, SIN, table, lane, exists, R: tl.constexpr):
    """Left and right of pairs, by the table row that begins at ``table``."""
    here, there = table + lane, table + R // 2 + lane
    cos_left, cos_right = tl.load(COS + here, mask=exists), tl.load(COS + there, mask=exists)
    sin_left, sin_right = tl.load(SIN + here, mask=exists), tl.load(SIN + there, mask=exists)
    first, second = first.to(tl.float32), second.to(tl.float32)
    return first * cos_left - second * sin_left, second * cos_right + first * sin_right


@triton.jit
def halves_kernel(T, COS, SIN, per_row, width, R: tl.constexpr, BARRIER: tl.constexpr):
    """Pairs into halves, in place: what one lane stores another may not have loaded yet."""
    at = T + tl.program_id(0) * width + width - R
    lane = tl.arange(0, R // 2)
    first, second = tl.load(at + 2 * lane), tl.load(at + 2 * lane + 1)
    table = tl.program_id(0) // per_row * R
    left, right = turn(first, second, COS, SIN, table, lane, lane >= 0, R)
    if BARRIER:
        tl.debug_barrier()
    tl.store(at + lane, left.to(first.dtype))
    tl.store(at + R // 2 + lane, right.to(first.dtype))


@triton.jit
def partner_kernel(T, COS, SIN, per_row, width, R: tl.constexpr, BARRIER: tl.constexpr):
    """Pairs into pairs, in place: each lane loads its partner and stores itself."""
    at = T + tl.program_id(0) * width + width - R
    lane = tl.arange(0, R)
    own, partner = tl.load(at + lane), tl.load(at + (lane ^ 1))
    odd = lane % 2 == 1
    first, second = tl.where(odd, partner, own), tl.where(odd, own, partner)
    table = tl.program_id(0) // per_row * R
    left, right = turn(first, second, COS, SIN, table, lane // 2, lane >= 0, R)
    if BARRIER:
        tl.debug_barrier()
    tl.store(at + lane, tl.where(odd, right, left).to(own.dtype))


@triton.jit
def reload_kernel(T, COS, SIN, per_row, width, R: tl.constexpr, BARRIER: tl.constexpr):
    """Pairs are put into halves, and these loaded again in a tile of another shape."""
    at = T + tl.program_id(0) * width + width - R
    every = tl.arange(0, R)
    x = tl.load(at + every)
    tl.debug_barrier()
    tl.store(at + every // 2 + every % 2 * (R // 2), x)
    if BARRIER:
        tl.debug_barrier()
    lane = tl.arange(0, R // 2)
    first, second = tl.load(at + lane), tl.load(at + R // 2 + lane)
    table = tl.program_id(0) // per_row * R
    left, right = turn(first, second, COS, SIN, table, lane, lane >= 0, R)
    tl.store(at + lane, left.to(x.dtype))
    tl.store(at + R // 2 + lane, right.to(x.dtype))


class _InPlace(torch.autograd.Function):
    """One launch over all rows, marked dirty, with the backward of the reference."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, a: dict[str, Any], kernel: Any, barrier: bool) -> Tensor:
        ctx.arguments = a
        rows, width = t.numel() // t.shape[-1], t.shape[-1]
        kernel[(rows,)](
            t, a["cos"], a["sin"], rows // len(t), width,
            R=a["emb_dim"], BARRIER=barrier, enable_fp_fusion=False,
        )  # fmt: skip
        ctx.mark_dirty(t)
        return t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gradient(grads[0], ctx.arguments), None, None, None


def in_halves(barrier: bool = True, **a: Any) -> Tensor:
    """In place with a barrier between loads and stores."""
    return _InPlace.apply(a["t"], a, halves_kernel, barrier)


def with_partners(barrier: bool = True, **a: Any) -> Tensor:
    """In place with a barrier between loads and stores, pairs into pairs."""
    return _InPlace.apply(a["t"], a, partner_kernel, barrier)


def reloaded(barrier: bool = True, **a: Any) -> Tensor:
    """In place with a barrier between a store and the load of what it stored."""
    return _InPlace.apply(a["t"], a, reload_kernel, barrier)


HAZARD = ("hazard", "t in forward")
RIGHT_THIS_TIME: dict[str, Any] = {"verdict": Verdict.IDENTICAL}


@plant(DENSE, *HAZARD, twin=in_halves, **RIGHT_THIS_TIME)
def converts_without_a_barrier(**arguments: Any) -> Tensor:
    """Pairs become halves in place with no barrier between loads and stores."""
    return in_halves(barrier=False, **arguments)


@plant(
    replace(DENSE, flags={"remove_interleaving": (True,)}),
    *HAZARD,
    twin=with_partners,
    **RIGHT_THIS_TIME,
)
def reads_its_partner_without_a_barrier(**arguments: Any) -> Tensor:
    """Each lane loads its partner and stores itself: a hazard that nobody has seen strike."""
    return with_partners(barrier=False, **arguments)


@plant(DENSE, *HAZARD, twin=reloaded, **RIGHT_THIS_TIME)
def reloads_without_a_barrier(**arguments: Any) -> Tensor:
    """What was just stored is loaded in a tile of another shape, with no barrier between."""
    return reloaded(barrier=False, **arguments)


# --- autotuners

TILES = (1, 4, 16)


def _tuned(arguments: dict[str, Any], restore: Any) -> Tensor:
    """Run every tile on the real tensor, as an autotuner does, and then the one that was best."""
    t, others = (
        arguments["t"].detach(),
        {n: v for n, v in arguments.items() if n not in ("t", "tile")},
    )
    before = t.clone()
    for tile in TILES:
        fused_mla_rope_inplace(t=t, tile=tile, **others)
        restore(t, before)
    return fused_mla_rope_inplace(t=arguments["t"], tile=4, **others)


def restores_each_time(**arguments: Any) -> Tensor:
    """An autotuner that puts back what each tile has written."""
    return _tuned(arguments, lambda t, before: t.copy_(before))


@plant(IN_PLACE, "values", "output", twin=restores_each_time)
def rotates_while_it_tunes(**arguments: Any) -> Tensor:
    """Every tile is tried on the real argument, which the first call rotates that often."""
    return _tuned(arguments, lambda t, before: t)


@plant(IN_PLACE, "values", "output", twin=restores_each_time)
def zeroes_what_it_restores(**arguments: Any) -> Tensor:
    """One hook restores the argument and another one then sets it to zero."""
    return _tuned(arguments, lambda t, before: t.zero_())


class _Half(torch.autograd.Function):
    """The first half of the rows, in memory that an autotuner would have filled before."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        half = torch.empty_like(output)
        half[: len(output) // 2] = output[: len(output) // 2]
        return half

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


@plant(ROTATE, "written", "output", tile={"tile": 4})
def writes_half_in_one_tile(**arguments: Any) -> Tensor:
    """One tile writes half of the output, and the others wrote the rest while they were timed."""
    output = fused_mla_rope_out_of_place(**arguments)
    return _Half.apply(output) if arguments["tile"] == 4 else output
