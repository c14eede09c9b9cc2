"""y = gate * x - update, elementwise, with its gradients: a kernel and its contract."""

import torch
import triton
import triton.language as tl

from parity import Input, OpSpec, Output


@triton.jit
def forward_kernel(x, gate, update, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    product = tl.load(gate + at, at < count).to(tl.float32) * tl.load(x + at, at < count)
    tl.store(y + at, product - tl.load(update + at, at < count), at < count)


@triton.jit
def backward_kernel(dy, x, gate, dx, dgate, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.load(dy + at, at < count).to(tl.float32)
    tl.store(dx + at, d * tl.load(gate + at, at < count), at < count)
    tl.store(dgate + at, d * tl.load(x + at, at < count), at < count)


class GatedDifference(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate, update, block):
        ctx.save_for_backward(x, gate)
        ctx.block, y = block, torch.empty_like(x)
        forward_kernel[(triton.cdiv(x.numel(), block),)](x, gate, update, y, x.numel(), block)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        (x, gate), grid = ctx.saved_tensors, (triton.cdiv(dy.numel(), ctx.block),)
        dx, dgate = torch.empty_like(x), torch.empty_like(gate)
        backward_kernel[grid](dy.contiguous(), x, gate, dx, dgate, x.numel(), ctx.block)
        return dx, dgate, -dy, None


def gated_difference(x, gate, update, block=64):
    return GatedDifference.apply(x, gate, update, block)


def reference(x, gate, update, compute_dtype=torch.float32, magnitude=False):
    x_wide, gate_wide, update_wide = (t.to(compute_dtype) for t in (x, gate, update))
    last = update_wide if magnitude else -update_wide  # magnitude: add where we subtract
    return (gate_wide * x_wide + last).to(x.dtype)


GATED_DIFFERENCE = OpSpec(
    name="gated_difference",
    candidate="own_op:gated_difference",
    reference="own_op:reference",
    inputs=tuple(Input(name, "rows width") for name in ("x", "gate", "update")),
    outputs=(Output("y"),),
    axes={"width": range(1, 200)},
    tiles={"block": (64, 16, 256)},
)
OPS = (GATED_DIFFERENCE,)
