"""Races between lanes of one program, which the CPU tier knows from the accesses alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from parity.verdict import Verdict

from .bug import IN_PLACE, plant
from .kernels import dense, gradient

DENSE = replace(
    IN_PLACE,
    layouts=("sbhd",),
    flags={"remove_interleaving": (False,)},
    axes={**IN_PLACE.axes, "rope_dim": (2, 4, 8, 16, 64)},
    tiles={},
    inputs=dense(IN_PLACE.inputs[:3]),
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
        return gradient(grads[0], ctx.arguments), None, None, None


def in_halves(barrier: bool = True, **a: Any) -> Tensor:
    """In place with a barrier between loads and stores."""
    return _InPlace.apply(a["t"], a, halves_kernel, barrier)


def with_partners(barrier: bool = True, **a: Any) -> Tensor:
    """In place with a barrier between loads and stores, pairs into pairs."""
    return _InPlace.apply(a["t"], a, partner_kernel, barrier)


def reloaded(barrier: bool = True, **a: Any) -> Tensor:
    """In place with a barrier between a store and the load of what it stored."""
    return _InPlace.apply(a["t"], a, reload_kernel, barrier)


HAZARD = ("hazard", "data in forward")
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
