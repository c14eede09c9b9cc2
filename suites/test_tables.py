"""The tables of RoPE and YaRN: against mpmath, against the reference, and the cache's key."""

import dataclasses
import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from parity.kernels import tables
from parity.kernels.tables import Rope, Yarn, cos_sin, freqs
from parity.reference import tables as reference

ROPE = Rope(64)
YARN = Yarn(64, scaling_factor=40.0, mscale=1.0, mscale_all_dim=0.5)
SPECS = {
    "rope": ROPE,
    "rope-interpolated": Rope(64, 1.0, 5e5, seq_len_interpolation_factor=4.0),
    "rope-percent": Rope(64, rotary_percent=0.5),
    "rope-pairs": Rope(8, rotary_interleaved=True),
    "yarn": YARN,
    "yarn-no-mscale": Yarn(64, scaling_factor=8.0, mscale=None, mscale_all_dim=None),
    "yarn-unrounded": Yarn(64, scaling_factor=40.0, correction_range_round_to_int=False),
    "yarn-one-pair": Yarn(2, scaling_factor=40.0),
    "yarn-equal-betas": Yarn(64, scaling_factor=4.0, beta_fast=4.0, beta_slow=4.0),
    "yarn-percent": Yarn(
        128, 0.5, 5e5, scaling_factor=16.0, beta_fast=20.0, beta_slow=2.0, mscale=0.7,
        mscale_all_dim=0.3,
    ),
    "yarn-short": Yarn(64, scaling_factor=1.5, original_max_position_embeddings=64),
    "yarn-small-base": Yarn(
        8, rotary_base=4.0, scaling_factor=40.0, beta_fast=500.0, mscale=None, mscale_all_dim=0.5
    ),
    "yarn-step": Yarn(
        64, scaling_factor=4.0, beta_fast=4.0, beta_slow=4.0, mscale=0.7, mscale_all_dim=None,
        correction_range_round_to_int=False,
    ),
    "yarn-shrunk": Yarn(64, scaling_factor=0.5, mscale=None),
}  # fmt: skip
POSITIONS = (0, 1, 77, 4095, 131_071, 999_999)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_cache", {})


def exact_rows(spec: Rope, positions: tuple[int, ...]) -> list[list[Any]]:
    """Angles of the pairs of each position, with the working precision of mpmath."""
    width, base = spec.width, mpmath.mpf(spec.rotary_base)
    kept = [base ** (mpmath.mpf(-2 * i) / width) for i in range(width // 2)]
    frequencies = kept
    if isinstance(spec, Yarn):
        bounds = [
            width
            * mpmath.log(spec.original_max_position_embeddings / (2 * mpmath.pi * beta))
            / (2 * mpmath.log(base))
            for beta in (mpmath.mpf(spec.beta_fast), mpmath.mpf(spec.beta_slow))
        ]
        if spec.correction_range_round_to_int:
            bounds = [mpmath.floor(bounds[0]), mpmath.ceil(bounds[1])]
        low, high = max(bounds[0], 0), min(bounds[1], width - 1)
        high += mpmath.mpf("0.001") if low == high else 0
        ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(width // 2)]
        frequencies = [
            f * (1 - ramp) + f / mpmath.mpf(spec.scaling_factor) * ramp
            for f, ramp in zip(kept, ramps, strict=True)
        ]
    return [
        [mpmath.mpf(p) / mpmath.mpf(spec.seq_len_interpolation_factor) * f for f in frequencies]
        for p in positions
    ]


def exact_concentration(spec: Rope) -> Any:
    if not isinstance(spec, Yarn) or spec.scaling_factor <= 1:
        return mpmath.mpf(1)
    log = mpmath.log(mpmath.mpf(spec.scaling_factor))
    if spec.mscale is None or spec.mscale_all_dim is None:
        return log / 10 + 1
    return (spec.mscale * log / 10 + 1) / (spec.mscale_all_dim * log / 10 + 1)


def angle_error(spec: Rope, angle: float) -> float:
    """How far a float64 angle may be off: the relative errors of its factors, to first order.

    The exponent -2i/R rounds once, which the power multiplies by up to ln(base); the power itself
    is good to 2 ulp, and position, interpolation and product round once each.  YaRN adds a
    quotient, two products, a sum and a ramp, whose own error (four roundings, and a bound of the
    range that passes through two logarithms, width / (high - low) at most times 8 u) multiplies a
    frequency that is at most the angle's own times the scaling factor.
    """
    units = math.log(spec.rotary_base) + 4 + 3
    if isinstance(spec, Yarn):
        low, high = spec.correction_range()
        units += 4 + (4 + 8 * spec.width / (high - low)) * spec.scaling_factor
    return angle * units * 2.0**-53


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPECS)
def test_tables_agree_with_mpmath(name: str, dtype: torch.dtype) -> None:
    """One rounding to ``dtype`` of a float64 value whose angle is good to a few units."""
    spec = SPECS[name]
    rounding = torch.finfo(dtype).eps / 2
    with mpmath.workdps(60):
        factor = exact_concentration(spec)
        for position, angles in zip(POSITIONS, exact_rows(spec, POSITIONS), strict=True):
            found = cos_sin(spec, 1, offset=position, dtype=dtype)
            for table, function in zip(found, (mpmath.cos, mpmath.sin), strict=True):
                lanes = [a for a in angles for _ in (0, 1)]
                lanes = lanes if spec.rotary_interleaved else angles * 2
                for got, angle in zip(table.flatten().tolist(), lanes, strict=True):
                    exact = function(angle) * factor
                    # cos, product and concentration round to float64 before the one rounding
                    limit = factor * (angle_error(spec, float(angle)) + 6 * 2.0**-53)
                    assert abs(got - exact) <= limit + rounding * (abs(exact) + limit)


@pytest.mark.parametrize("name", SPECS)
def test_tables_agree_with_the_reference(name: str) -> None:
    """The reference has the same error, so twice that between them; layout and shape are equal."""
    spec = SPECS[name]
    own = {item.name for item in dataclasses.fields(Rope)}
    fields = dataclasses.asdict(spec)
    yarn = {key: value for key, value in fields.items() if key not in own}
    common = {key: value for key, value in fields.items() if key in own}
    expected = reference.cos_sin(list(POSITIONS), **common, yarn=yarn or None)
    for row, position in enumerate(POSITIONS):
        found = cos_sin(spec, 1, offset=position, dtype=torch.float64)
        limit = 2 * spec.concentration() * (angle_error(spec, float(position)) + 6 * 2.0**-53)
        for got, wanted in zip(found, expected, strict=True):
            assert got.shape == (1, 1, 1, spec.width)
            assert (got[0] - wanted[row]).abs().max() <= limit


@pytest.mark.parametrize("name", SPECS)
def test_angles_are_those_of_the_tables(name: str) -> None:
    """float32 angles in [-pi, pi] are off by half an ulp of pi, and so are their cosines."""
    spec = SPECS[name]
    angles = freqs(spec, 50, offset=999_900)
    cos, sin = cos_sin(spec, 50, offset=999_900, dtype=torch.float64, mscale=1.0)
    assert angles.dtype == torch.float32
    assert angles.abs().max() <= math.pi * (1 + 2.0**-23)
    # reducing by 2 pi, itself off by 2^-53 relative, some 160,000 times adds 160,000 * 2^-51
    limit = 2.0**-23 + angle_error(spec, 1e6) + 160_000 * 2.0**-51
    assert (angles.double().cos() - cos).abs().max() <= limit
    assert (angles.double().sin() - sin).abs().max() <= limit


def test_a_base_of_2_is_legal() -> None:
    assert Yarn(4, rotary_base=2.0, beta_fast=2000.0).correction_range() == (0, 3)


def test_yarn_without_scaling_is_rope() -> None:
    yarn = cos_sin(Yarn(64, scaling_factor=1.0), 300, dtype=torch.float64)
    rope = cos_sin(ROPE, 300, dtype=torch.float64)
    # the two parts of the mix round, and add up to the frequency within three roundings
    assert all((a - b).abs().max() <= 300 * 3 * 2.0**-53 for a, b in zip(yarn, rope, strict=True))


def test_yarn_keeps_high_frequencies_and_divides_low_ones() -> None:
    """DeepSeek-V2's numbers: R 64, length 4096, betas 32 and 1 give the pairs 10 and 23."""
    spec = Yarn(64, scaling_factor=40.0)
    assert spec.correction_range() == (10, 23)
    ratio = Rope(64).frequencies() / spec.frequencies()
    assert ratio[:11].tolist() == pytest.approx([1.0] * 11, rel=2.0**-50)
    assert ratio[23:].tolist() == pytest.approx([40.0] * 9, rel=2.0**-50)
    assert (ratio[1:] >= ratio[:-1] * (1 - 2.0**-50)).all()


# --- the cache


CHANGES: dict[str, dict[str, Any]] = {
    "offset": {"offset": 3},
    "dtype": {"dtype": torch.bfloat16},
    "mscale": {"mscale": 1.25},
    "mscale of None": {"mscale": None},
    "cp_size": {"cp_size": 2},
    "cp_rank": {"cp_rank": 1, "cp_size": 2},
    "length": {"length": 12},
    "class": {"parameters": Rope(64, 1.0, 10000.0)},
    "dim": {"dim": 32},
    "rotary_percent": {"rotary_percent": 0.5},
    "rotary_base": {"rotary_base": 5e5},
    "seq_len_interpolation_factor": {"seq_len_interpolation_factor": 2.0},
    "rotary_interleaved": {"rotary_interleaved": True},
    "scaling_factor": {"scaling_factor": 8.0},
    "original_max_position_embeddings": {"original_max_position_embeddings": 1024},
    "beta_fast": {"beta_fast": 16.0},
    "beta_slow": {"beta_slow": 4.0},
    "yarn_mscale": {"yarn_mscale": 0.7},
    "mscale_all_dim": {"mscale_all_dim": 0.2},
    "correction_range_round_to_int": {"correction_range_round_to_int": False},
}
FIRST: dict[str, Any] = {"parameters": YARN, "length": 16, "mscale": 1.0}


def call(changes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    arguments = FIRST | changes
    if "yarn_mscale" in arguments:
        arguments["mscale"] = None
        arguments["parameters"] = dataclasses.replace(YARN, mscale=arguments.pop("yarn_mscale"))
    if "mscale_all_dim" in arguments:
        arguments["mscale"] = None
    fields = {item.name for item in dataclasses.fields(YARN)} - {"mscale"}
    own = {name: arguments.pop(name) for name in fields & arguments.keys()}
    return cos_sin(dataclasses.replace(arguments.pop("parameters"), **own), **arguments)


def test_every_parameter_has_a_change() -> None:
    """A parameter that is added later must be added to the changes too."""
    fields = {item.name for item in dataclasses.fields(Yarn)} - {"mscale"} | {"yarn_mscale"}
    keywords = set(cos_sin.__annotations__) - {"parameters", "device", "return"}
    assert (fields | keywords) <= set(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_anything_is_another_table(name: str) -> None:
    """After a first call, a changed one gives what it gives on an empty cache, and not the first's;
    then the first call again gives its own."""
    first = [table.clone() for table in call({})]
    changed = [table.clone() for table in call(CHANGES[name])]
    again = call({})
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    tables._cache.clear()
    fresh = call(CHANGES[name])
    for was, got, wanted in zip(first, changed, fresh, strict=True):
        assert got.dtype == wanted.dtype
        assert got.equal(wanted)
        assert got.shape != was.shape or got.dtype != was.dtype or not got.equal(was)


def test_a_key_that_lacks_a_parameter_is_seen() -> None:
    """The planted bug of a cache that knows length and dtype only: the check above turns red."""
    built: dict[Any, Tensor] = {}

    def careless(parameters: Rope, mscale: float | None = None) -> Tensor:
        return built.setdefault(16, cos_sin(parameters, 16, mscale=mscale)[0])

    assert careless(YARN).equal(careless(YARN, mscale=1.5))  # wrong, and so visible
    assert not cos_sin(YARN, 16)[0].equal(cos_sin(YARN, 16, mscale=1.5)[0])


def test_angles_and_tables_do_not_share_an_entry() -> None:
    assert not freqs(ROPE, 8).equal(cos_sin(ROPE, 8)[0])


def test_growth_keeps_the_rows_and_a_shorter_call_shares_them() -> None:
    short = cos_sin(ROPE, 8)
    longer = cos_sin(ROPE, 9)
    again = cos_sin(ROPE, 8)
    assert longer[0].shape == (9, 1, 1, 64)
    assert cos_sin(ROPE, 9)[0].data_ptr() == longer[0].data_ptr()
    for old, grown, now in zip(short, longer, again, strict=True):
        assert old.equal(grown[:8])
        assert now.data_ptr() == grown.data_ptr()
    assert len(tables._cache) == 2


def test_no_positions_have_a_table_without_rows() -> None:
    assert cos_sin(ROPE, 0)[0].shape == (0, 1, 1, 64)


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert tables._device("cuda") == torch.device("cuda", 3)
    assert tables._device("cuda:1") == torch.device("cuda", 1)
    assert tables._device("cpu") == torch.device("cpu")


def test_ranks_hold_zigzag_chunks_of_one_table() -> None:
    whole = cos_sin(ROPE, 16)[0]
    chunks = whole.chunk(8)
    for rank in range(4):
        held = cos_sin(ROPE, 16, cp_rank=rank, cp_size=4)[0]
        assert held.equal(torch.cat([chunks[rank], chunks[7 - rank]]))


@pytest.mark.parametrize("name", ["rope", "yarn"])
def test_autocast_defaults_and_modes_change_nothing(name: str) -> None:
    expected = [table.clone() for table in cos_sin(SPECS[name], 600)]
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        for mode in (torch.autocast("cpu", torch.bfloat16), torch.device("meta"), torch.no_grad()):
            tables._cache.clear()
            with mode:
                found = cos_sin(SPECS[name], 600)
            assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    finally:
        torch.set_default_dtype(default)


def test_autocast_would_be_seen() -> None:
    """The same product of positions and frequencies in float32 under autocast is far off."""
    position, frequency = torch.arange(600.0)[:, None], ROPE.frequencies().float()[None]
    with torch.autocast("cpu", torch.bfloat16):
        careless = (position @ frequency).float().cos()
    assert (careless - cos_sin(ROPE, 600)[0].flatten(1)[:, :32]).abs().max() > 0.1


def test_a_table_first_built_in_inference_mode_can_be_saved_for_backward() -> None:
    with torch.inference_mode():
        cos_sin(ROPE, 4)
    x = torch.ones(4, 1, 1, 64, requires_grad=True)
    (x * cos_sin(ROPE, 4)[0]).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Rope(64, rotary_percent=0.05), "even number of rotated lanes"),
        (lambda: Rope(64, rotary_percent=1.5), "at most dim"),
        (lambda: Rope(64, rotary_base=0.0), "rotary_base above 0"),
        (lambda: Rope(64, seq_len_interpolation_factor=math.nan), "factor above 0"),
        (lambda: Yarn(64, beta_fast=1.0, beta_slow=2.0), "beta_fast >= beta_slow"),
        (lambda: Yarn(64, rotary_base=1.0), "rotary_base other than 1"),
        (lambda: Yarn(64, original_max_position_embeddings=4), "turn between"),
        (lambda: Yarn(64, scaling_factor=-1.0), "scaling_factor above 0"),
        (lambda: cos_sin(ROPE, -1), "at least 0"),
        (lambda: cos_sin(ROPE, 4, offset=-1), "at least 0"),
        (lambda: cos_sin(ROPE, 4, cp_rank=2, cp_size=2), "2 of 2"),
        (lambda: cos_sin(ROPE, 6, cp_size=2), "divisible by 2"),
    ],
)
def test_refusals(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
