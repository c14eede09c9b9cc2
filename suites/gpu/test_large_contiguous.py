"""Contiguous tensors of more than 2^31 elements: the last rows are those of a call on them alone.

In bfloat16 each is 4 GiB, so this runs on a GPU only; `suites/test_large_offsets.py` shows on every
machine what strides alone can show.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from parity.comparators import same_bits
from parity.kernels.concat import fused_mla_rope_concat
from parity.kernels.inplace import fused_mla_rope_inplace
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.runner import device

HEADS, NOPE, ROPE, VALUE, TAIL = 32, 448, 64, 64, 8
TOKENS = 2**31 // (HEADS * (NOPE + ROPE)) + TAIL
NEEDED = 7 * 2 * TOKENS * HEADS * (NOPE + ROPE)  # bytes: inputs, outputs, gradients, copies

pytestmark = pytest.mark.skipif(
    device().type == "cpu" or torch.cuda.mem_get_info()[0] < NEEDED,
    reason=f"NOT_RUN: this needs a GPU with {NEEDED >> 30} GiB free",
)


def rotated(op: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda t, cos, sin: (op(t, cos, sin, NOPE, ROPE),)


def split(kv: Tensor, shared: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return fused_mla_rope_kv_split(kv, shared, cos, sin, ROPE, NOPE, VALUE)


def concat(nope: Tensor, rope: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    return (fused_mla_rope_concat(nope, rope, cos, sin),)


OPS: dict[str, tuple[Callable[..., tuple[Tensor, ...]], list[tuple[int, int]]]] = {
    "inplace": (rotated(fused_mla_rope_inplace), [(HEADS, NOPE + ROPE)]),
    "out_of_place": (rotated(fused_mla_rope_out_of_place), [(HEADS, NOPE + ROPE)]),
    "kv_split": (split, [(HEADS, NOPE + VALUE), (1, ROPE)]),
    "concat": (concat, [(HEADS, NOPE), (HEADS, ROPE)]),
}


def results(
    op: Callable[..., tuple[Tensor, ...]], data: list[Tensor], *tables: Tensor
) -> list[Tensor]:
    """The last rows of outputs and gradients; the incoming gradients are the outputs themselves."""
    leaves = [t.detach().requires_grad_() for t in data]
    outputs = op(*(t.clone() for t in leaves), *tables)
    kept = [t.detach()[-TAIL:].clone() for t in outputs]
    gradients = torch.autograd.grad(outputs, leaves, [t.detach() for t in outputs])
    return [*kept, *(t[-TAIL:].clone() for t in gradients)]


@pytest.mark.parametrize("name", OPS)
def test_the_last_rows_are_right(name: str) -> None:
    op, shapes = OPS[name]
    with device():
        data = [torch.randn(TOKENS, 1, *shape, dtype=torch.bfloat16) for shape in shapes]
        cos, sin = torch.randn(2, TOKENS, ROPE)
    large = results(op, data, cos, sin)
    small = results(op, [t[-TAIL:] for t in data], cos[-TAIL:], sin[-TAIL:])
    for got, wanted in zip(large, small, strict=True):
        assert same_bits(actual=got, expected=wanted) is None
