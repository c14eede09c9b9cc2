"""Bugs inside of kernels, planted in small ones: ours have neither tiles of heads nor raw sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.reference.out_of_place import fused_mla_rope_out_of_place as reference
from parity.spec import Input

from .bug import ROTATE, SPLIT, plant


def dense(inputs: Iterable[Input]) -> tuple[Input, ...]:
    """The inputs in the one memory layout that the small kernels take."""
    return tuple(replace(item, strides=("contiguous",)) for item in inputs)


PACKED = replace(
    ROTATE,
    layouts=("thd",),
    flags={},
    thd_flags={},
    tiles={},
    cp_sizes=(1,),
    inputs=dense(ROTATE.inputs[:4]),
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
        return gradient(grads[0], ctx.arguments), None, None


def gradient(grad: Tensor, arguments: dict[str, Any]) -> Tensor:
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
