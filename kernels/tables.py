"""Angles, cosines and sines of RoPE and YaRN: float64 until one last rounding, cached.

Built on the CPU, whatever device they are for, so that every machine rotates by the same bits.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """Frequencies ``rotary_base^(-2i/R)`` (RoFormer, arXiv 2104.09864), R = ``width``.

    ``dim`` are the lanes that could be rotated, of which ``rotary_percent`` are.  Positions are
    divided by ``seq_len_interpolation_factor`` (arXiv 2306.15595).  A row holds every angle twice:
    in halves ``[a | a]``, or in pairs if ``rotary_interleaved``.  Field names are Megatron-Core's.

    Raises:
        ValueError: a width that is odd or below 2, or a number that is not above 0.
    """

    dim: int
    rotary_percent: float = 1.0
    rotary_base: float = 10000.0
    seq_len_interpolation_factor: float = 1.0
    rotary_interleaved: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, "rotary_percent", "rotary_base", "seq_len_interpolation_factor")
        if self.width < 2 or self.width % 2 or self.rotary_percent > 1:
            raise ValueError(
                f"Expected an even number of rotated lanes, at most dim, but got dim={self.dim} "
                f"with rotary_percent={self.rotary_percent}."
            )

    @property
    def width(self) -> int:
        """The number of rotated lanes R."""
        return int(self.dim * self.rotary_percent)

    def frequencies(self) -> Tensor:
        """Radians per position of each pair, float64 ``[R // 2]``."""
        exponents = torch.arange(0, self.width, 2, dtype=torch.float64, device="cpu") / self.width
        return self.rotary_base**-exponents

    def concentration(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class Yarn(Rope):
    """YaRN (arXiv 2309.00071): low frequencies are divided by ``scaling_factor``, high ones kept.

    A pair that turns ``beta_fast`` times or more within ``original_max_position_embeddings``
    positions keeps its frequency, one that turns ``beta_slow`` times or fewer is interpolated, and
    a linear ramp lies between.  ``mscale`` and ``mscale_all_dim`` give the concentration; None for
    either is the paper's ``0.1 ln(scaling_factor) + 1``.  Field names are Megatron-Core's.

    Raises:
        ValueError: as :class:`Rope`, ``beta_fast`` below ``beta_slow``, or no pair between them.
    """

    scaling_factor: float = 1.0
    original_max_position_embeddings: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = 1.0
    mscale_all_dim: float | None = 0.0
    correction_range_round_to_int: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(
            self, "scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow"
        )
        if self.beta_fast < self.beta_slow or self.rotary_base == 1:
            raise ValueError(
                f"Expected beta_fast >= beta_slow and rotary_base other than 1 but got {self}."
            )
        self.correction_range()

    def frequencies(self) -> Tensor:
        """Radians per position of each pair, float64 ``[R // 2]``."""
        kept = super().frequencies()
        low, high = self.correction_range()
        pair = torch.arange(len(kept), dtype=torch.float64, device="cpu")
        ramp = ((pair - low) / (high - low)).clamp(0, 1)
        return kept / self.scaling_factor * ramp + kept * (1 - ramp)

    def correction_range(self) -> tuple[float, float]:
        """The pairs between which the ramp lies; 0.001 apart where they would be one."""
        low, high = (self._pair_that_turns(beta) for beta in (self.beta_fast, self.beta_slow))
        if self.correction_range_round_to_int:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.width - 1)
        if low > high:
            raise ValueError(
                f"Expected pairs that turn between beta_slow and beta_fast times within "
                f"original_max_position_embeddings={self.original_max_position_embeddings} "
                f"positions but all turn more often or all more rarely."
            )
        return (low, high + 0.001) if low == high else (low, high)

    def _pair_that_turns(self, times: float) -> float:
        """The (fractional) pair that makes this many turns in the original length."""
        wavelength = self.original_max_position_embeddings / (2 * math.pi * times)
        return self.width * math.log(wavelength) / (2 * math.log(self.rotary_base))

    def concentration(self) -> float:
        """The attention temperature of YaRN, which multiplies cosines and sines."""
        if self.mscale is None or self.mscale_all_dim is None:
            return self._temperature(1.0)
        return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)

    def _temperature(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.scaling_factor) + 1 if self.scaling_factor > 1 else 1.0


# Everything but the length that changes a table -> the longest table asked for so far.
_Key = tuple[Rope, int, str, torch.dtype, torch.device, float]
_cache: dict[_Key, Tensor] = {}


def cos_sin(
    parameters: Rope,
    length: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    mscale: float | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine for positions ``offset`` to ``offset + length``, times the concentration.

    Args:
        parameters: :class:`Rope` or :class:`Yarn`.
        length: positions of the whole sequence.
        offset: the first position.
        dtype: to which the float64 values are rounded, once.
        mscale: takes the place of the concentration.
        cp_rank, cp_size: for SBHD, the two zigzag chunks of this rank; THD takes the whole table.

    Returns:
        Two tensors ``[length / cp_size, 1, 1, R]``, shared with other callers: not to be written.

    Raises:
        ValueError: a negative length or offset, or one that the ranks cannot share.
    """
    factor = parameters.concentration() if mscale is None else mscale
    return (
        _table(parameters, length, offset, "cos", dtype, device, factor, cp_rank, cp_size),
        _table(parameters, length, offset, "sin", dtype, device, factor, cp_rank, cp_size),
    )


def freqs(
    parameters: Rope,
    length: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    cp_rank: int = 0,
    cp_size: int = 1,
) -> Tensor:
    """The angles themselves, for :func:`.dispatch.apply_rotary_pos_emb`, without concentration.

    Reduced to ``[-pi, pi]`` before they are rounded: float32 holds them within 2^-23 radians, where
    a position of 1e6 itself would be off by 2^-5.  Arguments, shape, errors as :func:`cos_sin`.
    """
    return _table(parameters, length, offset, "angle", dtype, device, 1.0, cp_rank, cp_size)


def _table(
    parameters: Rope,
    length: int,
    offset: int,
    kind: str,
    dtype: torch.dtype,
    device: torch.device | str,
    factor: float,
    cp_rank: int,
    cp_size: int,
) -> Tensor:
    if length < 0 or offset < 0 or not 0 <= cp_rank < cp_size:
        raise ValueError(
            f"Expected length and offset of at least 0 and a cp_rank below cp_size but got "
            f"{length}, {offset} and {cp_rank} of {cp_size}."
        )
    key = (parameters, offset, kind, dtype, _device(device), float(factor))
    table = _cache.get(key)
    if table is None or len(table) < length:
        table = _cache[key] = _build(*key, length)
    return _chunks(table[:length], cp_rank, cp_size)


def _device(device: torch.device | str) -> torch.device:
    """With its index: "cuda" alone means another device after ``torch.cuda.set_device``."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


# A tensor made in inference mode could never be saved for a backward, and this one is kept.
@torch.inference_mode(False)
@torch.no_grad()
def _build(
    parameters: Rope,
    offset: int,
    kind: str,
    dtype: torch.dtype,
    device: torch.device,
    factor: float,
    length: int,
) -> Tensor:
    position = torch.arange(length, dtype=torch.float64, device="cpu") + offset
    position /= parameters.seq_len_interpolation_factor
    # A product of two axes, not an outer product: autocast runs those in 16 bits.
    angle = position[:, None] * parameters.frequencies()
    if kind == "angle":
        values = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
    else:
        values = (angle.cos() if kind == "cos" else angle.sin()) * factor
    if parameters.rotary_interleaved:
        row = values.repeat_interleave(2, dim=1)
    else:
        row = torch.cat([values, values], dim=1)
    return row[:, None, None].to(device, dtype)  # [length, 1, 1, R]


def _chunks(table: Tensor, cp_rank: int, cp_size: int) -> Tensor:
    """Chunks r and ``2 * cp_size - 1 - r`` of ``2 * cp_size``: what rank r holds of a sequence."""
    if cp_size == 1:
        return table
    chunk, rest = divmod(len(table), 2 * cp_size)
    if rest:
        raise ValueError(
            f"Expected a length divisible by 2 * cp_size = {2 * cp_size} but got {len(table)}."
        )
    last = 2 * cp_size - 1 - cp_rank
    return torch.cat([table[part * chunk :][:chunk] for part in (cp_rank, last)])


def _check_positive(parameters: Rope, *names: str) -> None:
    for name in names:
        value = getattr(parameters, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"Expected {name} above 0 but got {value!r}.")
