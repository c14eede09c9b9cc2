"""Numbers for a case: the same bits on every machine and every version of torch.

Raw bits come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011),
which is counter-based and whose raw output numpy keeps stable; the key is the SHA-256 of the seed
and of the tensor's name.  The map from bits to numbers is our own and exact in float64.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def raw_bits(seed: int, name: str, count: int) -> NDArray[np.uint64]:
    """``count`` words of 64 random bits for the tensor ``name`` of the case with this seed."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(count)


def normal_floats(seed: int, name: str, count: int) -> Floats:
    """Signed values between 2^-8 and 4 over ten binades, one lane in sixteen +0 or -0.

    float64, [count].  Small enough that no sum of a case overflows fp16, wide enough that
    swapped, dropped or doubled terms change the result by many ulp; signed zeros show whether a
    copy keeps the sign.
    """
    bits = raw_bits(seed, name, count)
    sign = np.where(bits & np.uint64(1), -1.0, 1.0)
    zero = (bits >> np.uint64(1)) % np.uint64(16) == 0
    exponent = ((bits >> np.uint64(5)) % np.uint64(10)).astype(np.float64) - 8.0
    mantissa = 1.0 + (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52
    return sign * np.where(zero, 0.0, mantissa * 2.0**exponent)


def integers(seed: int, name: str, count: int, below: int) -> NDArray[np.int64]:
    """Values in [0, below), int64, [count]."""
    return (raw_bits(seed, name, count) % np.uint64(below)).astype(np.int64)


def table_angles(positions: int, rope_dim: int, equal_halves: bool) -> Floats:
    """Angles of a RoPE table in radians, float64, [positions, rope_dim].

    Frequencies 10000^(-2i/rope_dim) as in RoFormer (Su et al., 2021).  Row p is turned by p + 1,
    not p, so that no row is the identity: a row that is skipped then differs from one at
    position 0.  With different halves the right one turns at 0.7 of the left one's rate.
    """
    half = rope_dim // 2
    left = np.arange(1, positions + 1)[:, None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    return np.concatenate([left, left if equal_halves else 0.7 * left + 0.3], axis=1)
