"""Cosines and sines of RoPE and YaRN, one position and one pair after another.

Python floats are float64; nothing is cached and nothing is shared with the tables in use.
"""

import math
from typing import Any

import torch
from torch import Tensor


def rope_frequency(pair: int, width: int, rotary_base: float) -> float:
    """Radians per position, ``rotary_base^(-2 pair / width)`` (RoFormer, arXiv 2104.09864)."""
    return float(rotary_base ** (-2 * pair / width))


def yarn_frequency(
    pair: int,
    width: int,
    rotary_base: float = 10000.0,
    scaling_factor: float = 1.0,
    original_max_position_embeddings: int = 4096,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    correction_range_round_to_int: bool = True,
) -> float:
    """Radians per position of YaRN (arXiv 2309.00071, section 3.2, with Megatron-Core's rounding).

    Pairs up to ``low``, which turn ``beta_fast`` times within the original length, keep the
    frequency of RoPE; pairs from ``high`` on, which turn ``beta_slow`` times, have it divided by
    ``scaling_factor``; in between the two are mixed.
    """
    turns = {"low": beta_fast, "high": beta_slow}
    bound = {
        end: width
        * math.log(original_max_position_embeddings / (beta * 2 * math.pi))
        / (2 * math.log(rotary_base))
        for end, beta in turns.items()
    }
    if correction_range_round_to_int:
        bound = {"low": math.floor(bound["low"]), "high": math.ceil(bound["high"])}
    low, high = max(bound["low"], 0), min(bound["high"], width - 1)
    high = high + 0.001 if low == high else high  # a step instead of a division by zero
    interpolated = min(max((pair - low) / (high - low), 0.0), 1.0)
    frequency = rope_frequency(pair, width, rotary_base)
    return interpolated * frequency / scaling_factor + (1 - interpolated) * frequency


def yarn_concentration(
    scaling_factor: float, mscale: float | None = 1.0, mscale_all_dim: float | None = 0.0
) -> float:
    """What YaRN multiplies cosines and sines by: ``0.1 m ln(s) + 1`` for ``mscale`` over the same
    for ``mscale_all_dim``; without either, the paper's ``0.1 ln(s) + 1``."""

    def temperature(m: float) -> float:
        return 0.1 * m * math.log(scaling_factor) + 1.0 if scaling_factor > 1 else 1.0

    if mscale is None or mscale_all_dim is None:
        return temperature(1.0)
    return temperature(mscale) / temperature(mscale_all_dim)


def cos_sin(
    positions: list[int],
    dim: int,
    *,
    rotary_percent: float = 1.0,
    rotary_base: float = 10000.0,
    seq_len_interpolation_factor: float = 1.0,
    rotary_interleaved: bool = False,
    yarn: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Tables with a row for each position, float64.

    Args:
        positions: any whole numbers.
        dim: the lanes that could be rotated; ``int(dim * rotary_percent)`` are.
        rotary_interleaved: every angle twice side by side, instead of two equal halves.
        yarn: the arguments of :func:`yarn_frequency` and :func:`yarn_concentration` beside width
            and base; None for plain RoPE.

    Returns:
        cos and sin, ``[P, 1, 1, R]``.
    """
    width = int(dim * rotary_percent)
    scales = dict(yarn or {})
    temperatures = {
        name: scales.pop(name) for name in ("mscale", "mscale_all_dim") if name in scales
    }
    factor = yarn_concentration(scales.get("scaling_factor", 1.0), **temperatures) if yarn else 1.0
    cos, sin = [], []
    for position in positions:
        angles = []
        for pair in range(width // 2):
            if yarn is None:
                frequency = rope_frequency(pair, width, rotary_base)
            else:
                frequency = yarn_frequency(pair, width, rotary_base, **scales)
            angles.append(position / seq_len_interpolation_factor * frequency)
        lanes = [a for a in angles for _ in range(2)] if rotary_interleaved else angles * 2
        cos.append([math.cos(lane) * factor for lane in lanes])
        sin.append([math.sin(lane) * factor for lane in lanes])
    shape = (len(positions), 1, 1, width)
    return (
        torch.tensor(cos, dtype=torch.float64).view(shape),
        torch.tensor(sin, dtype=torch.float64).view(shape),
    )
