"""How far a correct kernel may be from the float64 oracle, element by element.

With u = 2^-24 the unit roundoff of fp32, M the sum of the absolute terms of a lane and n their
number:

* ``fp32_once`` (fp32 inside, contracted or not, one rounding): n products and their sum are off by
  at most n u M (Jeannerod and Rump, "Improved error bounds for inner products in floating-point
  arithmetic", 2013, which needs no second-order term), each product that underflows by at most half
  the smallest fp32 subnormal, 2^-150, and the rounding to the output dtype by half an ulp:
  ``0.5 ulp(oracle) + n 2^-24 M + n 2^-150``; for n = 2, ``0.5 ulp + 2^-23 M + 2^-149``.
* ``promoted`` (every operation in the promoted dtype of tensor and table): where that is fp32 it is
  ``fp32_once``; elsewhere the same argument with the storage dtype's u and subnormal, and no last
  rounding: ``n u M + n / 2 subnormals``.
* ``rounded_sums`` (h = n / 2 operands summed in fp32, rounded to storage, then rotated): the two
  products see operands off by h 2^-24 M from the sum and u M from its rounding, which the
  rotation may stretch by 1 + 2 u: the rotation's bound with n = 2, plus
  ``(h 2^-24 + u) (1 + 2 u) M`` and one subnormal for the two roundings.  This takes the entries of
  tables to be at most 1 and h to be far below 2^24.

A lane of one term whose exact result is a number of the output dtype (a copy) must have its bits.
"""

from __future__ import annotations

import numpy as np
import torch

from .spec import OpSpec

_FORMATS = {  # mantissa bits after the leading one, exponent of the smallest normal number
    torch.float32: (23, -126),
    torch.bfloat16: (7, -126),
    torch.float16: (10, -14),
}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of ``dtype``."""
    return 2.0 ** -(_FORMATS[dtype][0] + 1)


def smallest_subnormal(dtype: torch.dtype) -> float:
    """The smallest positive number of ``dtype``."""
    mantissa, exponent = _FORMATS[dtype]
    return 2.0 ** (exponent - mantissa)


def ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance between neighbours of ``dtype`` around float64 ``values``, clamped at the smallest
    normal number below; same shape, float64."""
    mantissa, smallest = _FORMATS[dtype]
    # by numpy, which is quicker with few numbers
    numbers = values.detach().cpu().numpy()
    exponent = np.where(numbers == 0, smallest, np.frexp(numbers)[1] - 1)  # frexp gives zero a 0
    steps = np.ldexp(1.0, np.maximum(exponent, smallest) - mantissa)
    return torch.as_tensor(steps, device=values.device)


def limit(
    spec: OpSpec,
    name: str,
    dtype: torch.dtype,
    table_dtype: torch.dtype,
    *,
    step: torch.Tensor,
    magnitude: torch.Tensor,
    terms: torch.Tensor,
) -> torch.Tensor:
    """The largest allowed ``|actual - oracle|`` of tensor ``name``, float64, its shape.

    ``step`` is the :func:`ulp` of the oracle in ``dtype``.
    """
    inner = torch.float32
    if spec.arithmetic == "promoted":
        inner = torch.promote_types(dtype, table_dtype)
    summed = name in spec.rounded_sums
    count = torch.full_like(terms, 2.0) if summed else terms
    bound = count * (unit_roundoff(inner) * magnitude + smallest_subnormal(inner) / 2)
    if inner == torch.float32:
        bound = bound + 0.5 * step
    if summed:
        u = unit_roundoff(dtype)
        operands = terms / 2 * unit_roundoff(torch.float32) + u
        bound = bound + operands * (1 + 2 * u) * magnitude + smallest_subnormal(dtype)
    return bound


def must_keep_bits(
    dtype: torch.dtype, *, oracle: torch.Tensor, terms: torch.Tensor
) -> torch.Tensor:
    """Lanes that are copies: one term, and an exact result that ``dtype`` can hold; bool."""
    return (terms <= 1) & (oracle.to(dtype).double() == oracle)
