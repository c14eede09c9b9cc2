"""Multiply-adds that round once, as a kernel compiled with contraction has them.

Without `enable_fp_fusion=False` the compiler turns `a * b + c` into one operation.  In a sum of two
products either product may be the one that is not rounded: LLVM takes the left one where it can,
and hardware has been seen to differ by tile.  So a result of such a kernel is right in bits if it
is one of three: nothing fused, the left product fused, the right product fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from ..guards import bits
from ..interpreter import fma

Side = Literal["left", "right"]
OPERATIONS = ("create_fmul", "create_fadd", "create_fsub")


@contextmanager
def contracted(side: Side) -> Iterator[None]:
    """Within this context sums and differences fuse a product: of two, the one on this side.

    fp64 stays as it is: its product is rounded.
    """
    before = {name: getattr(InterpreterBuilder, name) for name in OPERATIONS}
    multiply = before["create_fmul"]

    def create_fmul(self: Any, left: Any, right: Any) -> Any:
        result = multiply(self, left, right)
        result.factors = left.data, right.data
        return result

    def fused(name: str) -> Callable[..., Any]:
        def create(self: Any, left: Any, right: Any) -> Any:
            sign = -1 if name == "create_fsub" else 1
            for chosen in (side, "left", "right"):
                product, other = (left, right) if chosen == "left" else (right, left)
                if factors := getattr(product, "factors", None):
                    x, y = factors
                    z = sign * other.data if chosen == "left" else other.data
                    x = sign * x if chosen == "right" else x
                    return TensorHandle(fma(x, y, z), left.dtype.scalar)
            return before[name](self, left, right)

        return create

    try:
        InterpreterBuilder.create_fmul = create_fmul
        for name in OPERATIONS[1:]:
            setattr(InterpreterBuilder, name, fused(name))
        yield
    finally:
        for name, operation in before.items():
            setattr(InterpreterBuilder, name, operation)


def possible(run: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """What `run`, which launches kernels on fresh inputs, may give: nothing, left, right fused."""
    results = [run()]
    for side in ("left", "right"):
        with contracted(side):
            results.append(run())
    return results


def unexplained(actual: torch.Tensor, results: list[torch.Tensor]) -> torch.Tensor:
    """Where the bits of `actual` are those of none of the results, bool, same shape."""
    same = [bits(actual.contiguous()) == bits(one.contiguous()) for one in results]
    return ~torch.stack(same).any(dim=0)
