"""Running error bounds: how far a chain of operations may be from the float64 oracle.

The bound of one op assumes exact inputs (:mod:`parity.bounds`).  A consumer chains many, so each
value carries the bound of all that went before it, and grows with the number of terms (Wilkinson's
running error analysis; Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3).

Everything is taken to be computed in fp32, in any order, contracted or not, with u = 2^-24, and to
be rounded to storage where :meth:`Bounded.rounded` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch

from .bounds import smallest_subnormal, ulp, unit_roundoff

U = unit_roundoff(torch.float32)
TINY = smallest_subnormal(torch.float32)
# exp and rsqrt of CPU and GPU libraries are good to 2 ulp, which is 4 u
FUNCTION = 4 * U

Map = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Bounded:
    """``|computed - value| <= error``, element by element; both float64 of one shape."""

    value: torch.Tensor
    error: torch.Tensor

    @classmethod
    def exact(cls, tensor: torch.Tensor) -> Bounded:
        """An input, which both sides read from the same bits."""
        value = tensor.detach().double()
        return cls(value, torch.zeros_like(value))

    @property
    def size(self) -> torch.Tensor:
        """The largest magnitude that the computed value may have."""
        return self.value.abs() + self.error

    def moved(self, function: Map) -> Bounded:
        """Lanes that are only moved: a slice, a permutation, an expansion."""
        return Bounded(function(self.value), function(self.error))

    def rounded(self, dtype: torch.dtype) -> Bounded:
        """Rounded once to ``dtype``: half an ulp of the largest value that it may round."""
        if dtype == torch.float32:
            return self
        return Bounded(self.value, self.error + 0.5 * ulp(self.size, dtype))

    def scaled(self, factor: float) -> Bounded:
        """Times a constant, which is rounded to fp32 as the product is."""
        return _computed(self.value * factor, self.error * abs(factor), 2)

    def __add__(self, other: Bounded) -> Bounded:
        return _computed(self.value + other.value, self.error + other.error, 1)

    def relu(self) -> Bounded:
        """No rounding, and no two values get further apart."""
        return Bounded(self.value.relu(), self.error)


def _computed(value: torch.Tensor, error: torch.Tensor, roundings: int) -> Bounded:
    """A result that is rounded to fp32 this often on the way, to first order plus one for more."""
    size = value.abs() + error
    return Bounded(value, error + roundings * (1 + 2 * roundings * U) * U * size + TINY)


def product(equation: str, a: Bounded, b: Bounded) -> Bounded:
    """``einsum`` of two operands: n u |A||B| for sums of n products, whatever their order."""
    names, result = equation.split("->")
    sizes: dict[str, int] = {}
    for letters, operand in zip(names.split(","), (a, b), strict=True):
        sizes |= dict(zip(letters, operand.value.shape, strict=True))
    terms = prod(size for letter, size in sizes.items() if letter not in result)
    error = torch.einsum(equation, a.value.abs(), b.error)
    error = error + torch.einsum(equation, a.error, b.size)
    magnitude = torch.einsum(equation, a.size, b.size)
    error = error + terms * (U * magnitude + TINY / 2)
    return Bounded(torch.einsum(equation, a.value, b.value), error)


def linear(
    x: Bounded,
    oracle: Map,
    magnitude: Map,
    terms: torch.Tensor,
    dtype: torch.dtype,
    inner: torch.dtype = torch.float32,
) -> Bounded:
    """A linear op ``y = A x`` on storage values, rounded once to ``dtype``; copies keep their bits.

    ``oracle`` computes A x and ``magnitude`` |A| x, both in float64; ``terms`` counts the nonzero
    terms of each lane.  Another ``inner`` dtype than fp32 is that of every operation, and then
    there is no last rounding.
    """
    value, carried = oracle(x.value), magnitude(x.error)
    own = terms * (unit_roundoff(inner) * magnitude(x.size) + smallest_subnormal(inner) / 2)
    if inner == torch.float32 and dtype != torch.float32:
        own = own + 0.5 * ulp(value.abs() + carried + own, dtype)
    return Bounded(value, carried + torch.where(terms > 1, own, 0.0))


def softmax(scores: Bounded, mask: torch.Tensor) -> Bounded:
    """Softmax over the last axis where ``mask`` holds, zero elsewhere.

    A shift by the largest score cancels, but its subtraction rounds.  An error of h in an exponent
    is a factor e^h, so that ``p`` is off by the factors of its own exponent and of the sum's worst;
    exp, the sum of n terms, the quotient (or a reciprocal and a product) add their roundings.
    """
    value = scores.value.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    size = scores.size.where(mask, 0.0)
    shift = scores.error.where(mask, 0.0) + 2 * U * size.amax(dim=-1, keepdim=True)
    units = 2 * FUNCTION + (value.shape[-1] + 3) * U
    relative = torch.expm1(shift + shift.amax(dim=-1, keepdim=True) + units)
    smallest_normal = 2.0**-126  # below it exp may give zero
    return Bounded(value, torch.where(mask, value * relative + smallest_normal, 0.0))


def over_root_mean_square(x: Bounded, eps: float) -> Bounded:
    """``x / sqrt(mean(x^2) + eps)`` over the last axis."""
    count = x.value.shape[-1]
    square = Bounded(x.value.square(), 2 * x.value.abs() * x.error + x.error.square())
    total = _computed(square.value.mean(-1, keepdim=True), square.error.mean(-1, keepdim=True), 0)
    mean = _computed(total.value + eps, total.error, count + 3)
    inverse = mean.value.rsqrt()
    highest = (mean.value - mean.error).clamp(min=0).rsqrt()
    root = Bounded(inverse, highest - inverse + FUNCTION * highest)
    carried = x.error * (root.value + root.error) + x.value.abs() * root.error
    return _computed(x.value * root.value, carried, 1)
