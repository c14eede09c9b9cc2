"""Numbers for a case: the same bits on every machine and every version of torch.

Raw bits come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011),
which is counter-based and whose raw output numpy keeps stable; the key is the SHA-256 of the seed
and of the tensor's name.  The map from bits to numbers is our own and exact in float64.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from .spec import REGIMES

Floats = NDArray[np.float64]
# Given each key in turn: a new generator asks the system for entropy first, which takes four times
# as long as the numbers of a tensor.
_PHILOX = np.random.Philox(key=0)
_AT_START = _PHILOX.state
_ONE_AT_A_TIME = Lock()
_EXPONENTS = {"float32": (-126, 127), "bfloat16": (-126, 127), "float16": (-14, 15)}


def raw_bits(seed: int, name: str, count: int) -> NDArray[np.uint64]:
    """``count`` words of 64 random bits for the tensor ``name`` of the case with this seed."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    with _ONE_AT_A_TIME:
        _PHILOX.state = {**_AT_START, "state": {"counter": np.zeros(4, np.uint64), "key": key}}
        return _PHILOX.random_raw(count)


@lru_cache(maxsize=32)  # every run of a case asks again; whoever gets them copies them
def floats(seed: int, name: str, count: int, regime: str, dtype: str, *, sums: bool) -> Floats:
    """``count`` values of a regime for a tensor of ``dtype``, float64, [count].

    * ``normal``: signed, between 2^-8 and 4 over ten binades, one lane in sixteen +0 or -0: wide
      enough that swapped, dropped or doubled terms show, and signed zeros show whether a copy
      keeps the sign.
    * ``huge`` and ``subnormal``: the same, moved to the ends of the dtype.  M stays under a quarter
      of the largest number; for an op that sums over heads (``sums``) so does the sum.
    * ``paired``: lanes 2i and 2i+1 are equal; a table near 45 degrees then cancels them.
    * ``one_hot``: a single lane differs from zero.  ``constant``: every lane is 1.25.
    * ``nan_lane``, ``inf_lane``: normal, with one NaN or infinity.

    Raises ValueError for an unknown regime.
    """
    if regime not in REGIMES:
        raise ValueError(f"Expected a regime among {', '.join(REGIMES)} but got {regime!r}.")
    if regime == "constant":
        return np.full(count, 1.25)
    values = _normal(seed, name, count)
    if not count:
        return values
    smallest, largest = _EXPONENTS[dtype]
    if regime == "huge":
        values *= 2.0 ** (largest - (13 if sums else 5))
    elif regime == "subnormal":
        values *= 2.0 ** (smallest - 1)
    elif regime == "paired":
        values = np.repeat(values[::2], 2)[:count]
    elif regime == "one_hot":
        values = np.where(np.arange(count) == _lane(seed, name, count), 1.75, 0.0)
    elif regime in ("nan_lane", "inf_lane"):
        values[_lane(seed, name, count)] = np.nan if regime == "nan_lane" else np.inf
    return values


def _lane(seed: int, name: str, count: int) -> int:
    return int(raw_bits(seed, f"{name}/lane", 1)[0] % count)


def _normal(seed: int, name: str, count: int) -> Floats:
    bits = raw_bits(seed, name, count)
    sign = np.where(bits & np.uint64(1), -1.0, 1.0)
    zero = (bits >> np.uint64(1)) % np.uint64(16) == 0
    exponent = ((bits >> np.uint64(5)) % np.uint64(10)).astype(np.float64) - 8.0
    mantissa = 1.0 + (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52
    return sign * np.where(zero, 0.0, mantissa * 2.0**exponent)


def integers(seed: int, name: str, count: int, below: int) -> NDArray[np.int64]:
    """Values in [0, below), int64, [count]."""
    return (raw_bits(seed, name, count) % np.uint64(below)).astype(np.int64)


def table_angles(positions: int, rope_dim: int, kind: str) -> Floats:
    """Angles of a RoPE table in radians, float64, [positions, rope_dim].

    Frequencies 10000^(-2i/rope_dim) as in RoFormer (Su et al., 2021).  Row p is turned by p + 1,
    not p, so that no row is the identity: a row that is skipped then differs from one at
    position 0.  ``kind``: ``equal`` halves; ``different`` ones, the right half at 0.7 of the left
    one's rate; ``diagonal``, a hair off 45 degrees, where paired lanes cancel.
    """
    half = rope_dim // 2
    row = np.arange(1, positions + 1)[:, None]
    if kind == "diagonal":
        return np.pi / 4 + np.ldexp(row + np.arange(rope_dim)[None, :] / rope_dim, -12)
    left = row * 10000.0 ** (-np.arange(half) / max(half, 1))
    return np.concatenate([left, left if kind == "equal" else 0.7 * left + 0.3], axis=1)
