"""The dispatcher: the full product of its flags against a float64 oracle, launches and warnings.

The oracle shares nothing with either path: it writes a row's rotation down as a matrix A, so that
y = A x, dx = A^T g and M = |A| |x|, and deals out positions by cutting lists.
"""

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from parity.bounds import ulp
from parity.kernels import dispatch
from parity.kernels.dispatch import RopeConfig, apply_rotary_pos_emb, should_use_fused_mla_rope
from parity.kernels.validation import validation
from parity.runner import device

pytestmark = pytest.mark.filterwarnings("ignore:apply_rope_fusion")

LENGTHS, TAIL = (4, 0, 8), 2
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS, WIDTH, SEQ, BATCH = 2, 4, 8, 2


@dataclass(frozen=True)
class Point:
    """One point of the product, without fusion: both paths are tried on every one."""

    layout: str
    cp_size: int
    inverse: bool
    rotary_interleaved: bool
    mla_rotary_interleaved: bool | None
    remove: bool
    mscale: float
    rotary_percent: float
    max_seqlen: bool
    packed_table: bool
    asymmetric: bool

    @property
    def mla(self) -> bool:
        return self.mla_rotary_interleaved is not False

    def refused(self) -> bool:
        """What neither path defines: nothing to remove, or packing without a pack."""
        packing = self.layout == "sbhd" and (self.max_seqlen or self.packed_table)
        return packing or (self.remove and not self.mla)

    def fusable(self) -> bool:
        return self.mla and not self.rotary_interleaved


def product(layout: str, cp_size: int) -> list[Point]:
    both = (False, True)
    axes = (both, both, (False, True, None), both, (1.0, 1.25), (1.0, 0.5), both, both, both)
    return [Point(layout, cp_size, *values) for values in itertools.product(*axes)]


def held(items: list[int], rank: int, size: int) -> list[int]:
    """What a rank holds of a sequence: chunk r and its mirror image of 2 * size chunks."""
    if size == 1:
        return items
    chunk = len(items) // (2 * size)
    chunks = [items[chunk * i : chunk * (i + 1)] for i in range(2 * size)]
    return chunks[rank] + chunks[2 * size - 1 - rank]


def table_rows(point: Point, rank: int) -> list[int]:
    """The row of the table for each token (THD) or position (SBHD) of this rank."""
    if point.layout == "sbhd":
        return held(list(range(SEQ)), rank, point.cp_size)
    rows, start = [], 0
    for length in LENGTHS:
        positions = [start + i if point.packed_table else i for i in range(length)]
        rows += held(positions, rank, point.cp_size)
        start += length
    return rows + [0] * TAIL


def matrices(point: Point, cos: Tensor, sin: Tensor, lanes: int) -> Tensor:
    """A for every row of a table ``[P, R]``: ``[P, lanes, lanes]``, float64."""
    positions, width = cos.shape
    order = list(range(width))
    source = order[0::2] + order[1::2] if point.mla else order
    target = source if point.remove else order
    sign = -1.0 if point.inverse else 1.0
    a = torch.eye(lanes, dtype=torch.float64).repeat(positions, 1, 1)
    a[:, :width] = 0
    for pair in range(width // 2):
        i, j = (2 * pair, 2 * pair + 1) if point.rotary_interleaved else (pair, pair + width // 2)
        a[:, target[i], source[i]] = cos[:, i]
        a[:, target[i], source[j]] = -sign * sin[:, i]
        a[:, target[j], source[j]] = cos[:, j]
        a[:, target[j], source[i]] = sign * sin[:, j]
    return a


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return values.to(device())


class Setup:
    """Tensors of a point, its arguments, and the oracle of forward and backward."""

    def __init__(self, point: Point, index: int) -> None:
        self.point, self.rank = point, index % point.cp_size
        dtype = DTYPES[index % 3]
        lanes = int(WIDTH / point.rotary_percent)
        rows = table_rows(point, self.rank)
        whole = sum(LENGTHS) if point.packed_table else max(LENGTHS)
        positions = SEQ if point.layout == "sbhd" else whole + (4 if point.asymmetric else 0)
        angles = 3 * random(positions, 1, 1, WIDTH, seed=index).float()
        shape = (len(rows), BATCH, HEADS) if point.layout == "sbhd" else (len(rows), HEADS)
        self.t = random(*shape, lanes, seed=index + 1).to(dtype).requires_grad_()
        self.grad = random(*shape, lanes, seed=index + 2).to(dtype)
        if point.layout == "sbhd":
            angles, rows = angles[rows], list(range(len(rows)))  # the caller slices the table
            if point.asymmetric:
                angles = torch.cat([angles, angles])  # a table for longer keys than queries
        self.freqs = angles
        self.arguments: dict[str, Any] = {
            "mscale": point.mscale, "mla_rotary_interleaved": point.mla_rotary_interleaved,
            "inverse": point.inverse, "mla_output_remove_interleaving": point.remove,
            "max_seqlen": max(LENGTHS) if point.max_seqlen else None,
            "whole_pack_table": point.packed_table,
            "cp_rank": self.rank, "cp_size": point.cp_size,
        }  # fmt: skip
        if point.layout == "thd":
            starts = torch.tensor([0, *itertools.accumulate(LENGTHS)])
            self.arguments["cu_seqlens"] = starts.to((torch.int32, torch.int64)[index % 2])
        cos, sin = ((f(angles) * point.mscale).to(dtype).double() for f in (torch.cos, torch.sin))
        a = matrices(point, cos.flatten(1), sin.flatten(1), lanes)[rows]
        self.a = a if point.layout == "thd" else a[:, None]

    def run(self, fused: bool) -> tuple[Tensor, Tensor]:
        point = self.point
        config = RopeConfig(
            apply_rope_fusion=fused,
            rotary_interleaved=point.rotary_interleaved,
            rotary_percent=point.rotary_percent,
        )
        self.t.grad = None
        y = apply_rotary_pos_emb(self.t, self.freqs, config, **self.arguments)
        y.backward(self.grad)
        assert self.t.grad is not None
        return y.detach(), self.t.grad

    def problems(self, found: tuple[Tensor, Tensor]) -> Iterator[str]:
        """What is beyond its bound; rotated lanes once rounded, the others bit for bit."""
        sources = (self.t.detach(), self.a), (self.grad, self.a.mT)
        for name, value, (x, a) in zip(("y", "dt"), found, sources, strict=True):
            oracle, magnitude = apply(a, x.double()), apply(a.abs(), x.double().abs())
            limit = 0.5 * ulp(oracle, value.dtype) + 2.0**-23 * magnitude + 2.0**-149
            if not ((value.double() - oracle).abs() <= limit).all():
                yield f"{name} is beyond its bound"
            if not value[..., WIDTH:].equal(x[..., WIDTH:]):
                yield f"{name} lost bits of copied lanes"


def apply(a: Tensor, x: Tensor) -> Tensor:
    """A per table row on ``[T, H, D]`` or ``[S, B, H, D]``."""
    return torch.einsum("...ij,...hj->...hi", a, x)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all Triton kernels that are launched, whoever launches them."""
    names: list[str] = []
    kind: Any = JITFunction if device().type == "cuda" else InterpretedFunction
    stock = kind.run

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(self.fn.__name__)
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(kind, "run", counting)
    return names


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_warned", set())


@pytest.fixture(autouse=True)
def tensors_where_kernels_run() -> Iterator[None]:
    with device():
        yield


def judge(point: Point, index: int, launches: list[str]) -> list[str]:
    """Everything that is wrong with both paths at one point."""
    setup, found = Setup(point, index), {}
    problems = []
    for fused in (False, True):
        launches.clear()
        try:
            found[fused] = setup.run(fused)
        except ValueError:
            continue
        expected = ["rotate_kernel"] * 2 if fused and point.fusable() else []
        if launches != expected:
            problems.append(f"launched {launches} where {expected} was promised")
        problems += [f"fused={fused}: {text}" for text in setup.problems(found[fused])]
    if set(found) != (set() if point.refused() else {False, True}):
        problems.append(f"only {sorted(found)} ran")
    if len(found) == 2:
        same = (a.equal(b) for a, b in zip(found[False], found[True], strict=True))
        problems += [] if all(same) else ["fused and unfused differ"]
    return problems


PLAIN = Point("thd", 1, False, False, True, False, 1.0, 1.0, False, False, False)
DROPPED = {
    "inverse": replace(PLAIN, inverse=True),
    "remove_interleaving": replace(PLAIN, remove=True),
    "whole_pack_table": replace(PLAIN, packed_table=True),
    "cp_size": replace(PLAIN, cp_size=2),
    "rope_first": replace(PLAIN, rotary_percent=0.5),
}


@pytest.mark.parametrize("flag", DROPPED)
def test_a_flag_that_the_fused_path_drops_is_seen(
    flag: str, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a dispatcher calls a vendor's kernel with the arguments which that one knows."""
    point, stock = DROPPED[flag], dispatch.fused_mla_rope_out_of_place
    assert judge(point, 1, launches) == []

    def careless(*tensors: Any, **flags: Any) -> Tensor:
        if flag == "cp_size":
            tensors = (*tensors[:-2], 0, 1)
        return stock(*tensors, **{k: v for k, v in flags.items() if k != flag})

    monkeypatch.setattr(dispatch, "fused_mla_rope_out_of_place", careless)
    assert any("fused=True" in problem for problem in judge(point, 1, launches))


@pytest.mark.parametrize("flag", ["inverse", "remove_interleaving", "rotary_interleaved"])
def test_a_flag_that_the_unfused_path_drops_is_seen(
    flag: str, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = {**DROPPED, "rotary_interleaved": replace(PLAIN, rotary_interleaved=True)}[flag]
    stock = dispatch.rotate_unfused
    monkeypatch.setattr(
        dispatch, "rotate_unfused", lambda *args, **flags: stock(*args, **flags | {flag: False})
    )
    assert any("fused=False" in problem for problem in judge(point, 1, launches))


def test_a_table_guessed_from_its_length_is_seen(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table for keys longer than the queries is as long as the pack, and still is no pack's."""
    point, stock = replace(PLAIN, asymmetric=True), dispatch.fused_mla_rope_out_of_place

    def guessing(t: Tensor, cos: Tensor, *rest: Any, **flags: Any) -> Tensor:
        flags["whole_pack_table"] = len(cos) == int(rest[3][-1])
        return stock(t, cos, *rest, **flags)

    assert judge(point, 1, launches) == []
    monkeypatch.setattr(dispatch, "fused_mla_rope_out_of_place", guessing)
    assert "fused=True: y is beyond its bound" in judge(point, 1, launches)


def test_a_fused_path_that_falls_back_in_silence_is_seen(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_choose", lambda *_: ("unfused", "no reason"))
    assert judge(PLAIN, 1, launches) == [
        "launched [] where ['rotate_kernel', 'rotate_kernel'] was promised"
    ]


# --- the table


FUSED = RopeConfig(apply_rope_fusion=True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_table_is_cos_and_sin_times_mscale(fused: bool, dtype: torch.dtype) -> None:
    """Pairs (1, 0) show it: left = cos and right = sin, in float32, at positions up to 1e6."""
    freqs = torch.tensor([0.0, 1.0, 2.5, 1e6], dtype=dtype)[:, None, None, None].repeat(1, 1, 1, 2)
    t = torch.tensor([1.0, 0.0]).expand(4, 1, 1, 2).contiguous()
    y = apply_rotary_pos_emb(
        t, freqs, replace(FUSED, apply_rope_fusion=fused), mscale=1.3, mla_rotary_interleaved=True
    )
    for row, angle in zip(y.flatten(1).tolist(), (0.0, 1.0, 2.5, 1e6), strict=True):
        for got, exact in zip(row, (1.3 * math.cos(angle), 1.3 * math.sin(angle)), strict=True):
            # cos good to an ulp of 1, the factor rounded, the product rounded
            assert abs(got - exact) <= 1.3 * 2.0**-23 + 2 * 2.0**-24


def test_angles_in_16_bits_are_refused() -> None:
    t, freqs = torch.zeros(4, 1, 1, 2), torch.zeros(4, 1, 1, 2)
    for dtype in (torch.bfloat16, torch.float16, torch.int64):
        with pytest.raises(ValueError, match="16 bits cannot hold"):
            apply_rotary_pos_emb(t, freqs.to(dtype), FUSED)


# --- path, reason, warnings


@pytest.mark.parametrize(
    ("change", "path", "word"),
    [
        ({}, "fused", "nothing in the configuration forbids it"),
        ({"apply_rope_fusion": False}, "unfused", "apply_rope_fusion=False"),
        ({"multi_latent_attention": False}, "unfused", "multi_latent_attention=False"),
        ({"rotary_interleaved": True}, "unfused", "rotary_interleaved=True"),
        ({"rope_type": "rope"}, "fused", ""),
    ],
)
def test_path_and_reason(change: dict[str, Any], path: str, word: str) -> None:
    config = replace(FUSED, **change)
    for asked in (config, SimpleNamespace(**asdict(config), hidden_size=8)):
        found, reason = should_use_fused_mla_rope(asked)
        assert found == path
        assert word in reason


def test_an_unknown_rope_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'rope' or 'yarn' but got 'mrope'"):
        should_use_fused_mla_rope(replace(FUSED, rope_type="mrope"))


def made(changes: dict[str, Any]) -> dict[str, Any]:
    """Parameters are written as functions of nothing where they are tensors of the device."""
    return {name: value() if callable(value) else value for name, value in changes.items()}


def warned(**changes: Any) -> list[str]:
    """The warnings of one call with fusion on, by default one that is fused."""
    changes = made(changes)
    config = replace(FUSED, **{k: v for k, v in changes.items() if hasattr(FUSED, k)})
    t = changes.pop("t", torch.ones(4, 2, 1, 4))
    freqs = changes.pop("freqs", torch.ones(4, 1, 1, 4))
    flags = {k: v for k, v in changes.items() if not hasattr(FUSED, k)}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        apply_rotary_pos_emb(t, freqs, config, **{"mla_rotary_interleaved": True} | flags)
    assert all(item.filename == __file__ for item in seen)
    return [str(item.message) for item in seen]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rotary_interleaved": True}, "rotary_interleaved=True"),
        ({"multi_latent_attention": False}, "multi_latent_attention=False"),
        ({"mla_rotary_interleaved": False}, "mla_rotary_interleaved=False"),
        ({"freqs": lambda: torch.ones(4, 2, 1, 4)}, "freqs with a batch axis"),
        ({"t": lambda: torch.ones(4, 2, 1, 4, dtype=torch.float64)}, "t in float64"),
        ({"t": lambda: torch.ones(4, 2, 1, 8)[..., ::2]}, "last stride"),
    ],
)
def test_one_warning_per_reason(changes: dict[str, Any], named: str) -> None:
    (text,) = warned(**changes)
    assert named in text
    assert warned(**changes) == []
    assert warned() == []
    other = "mla_rotary_interleaved" if "rotary_interleaved" in changes else "rotary_interleaved"
    assert len(warned(**{other: other == "rotary_interleaved"})) == 1


def test_the_warning_names_the_line_of_the_call() -> None:
    names = {"call": apply_rotary_pos_emb, "t": torch.ones(4, 2, 1, 4), "config": FUSED}
    code = compile("call(t, t[:, :1], config)", "of_the_user.py", "exec")
    with pytest.warns(UserWarning, match="mla_rotary_interleaved=False") as seen:
        exec(code, names)
    assert [item.filename for item in seen] == ["of_the_user.py"]


def test_no_warning_where_fusion_is_not_asked_for() -> None:
    assert warned(apply_rope_fusion=False, rotary_interleaved=True) == []


# --- what is left: groups, batched tables, float64, strides, positions outside


def test_a_group_stands_for_rank_and_size() -> None:
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    t, freqs = random(4, 1, 4, seed=1).float(), random(8, 1, 1, 4, seed=2).float()
    arguments = (t, freqs, FUSED, torch.tensor([0, 8]))
    by_group = apply_rotary_pos_emb(*arguments, cp_group=group, mla_rotary_interleaved=True)
    by_number = apply_rotary_pos_emb(*arguments, cp_rank=1, cp_size=2, mla_rotary_interleaved=True)
    assert by_group.equal(by_number)
    with pytest.raises(ValueError, match="got both"):
        apply_rotary_pos_emb(*arguments, cp_group=group, cp_size=2)


def test_a_table_for_every_batch_entry() -> None:
    t, freqs = random(4, 3, 2, 6, seed=1).float(), random(4, 3, 1, 4, seed=2).float()
    flags = {"mla_rotary_interleaved": True}
    y = apply_rotary_pos_emb(t, freqs, FUSED, **flags)
    for entry in range(3):
        alone = slice(entry, entry + 1)
        part = apply_rotary_pos_emb(t[:, alone].contiguous(), freqs[:, alone], FUSED, **flags)
        assert y[:, alone].equal(part)


def test_a_float64_tensor_is_rotated_in_float64() -> None:
    """The inverse undoes it to a few units of float64: c^2 + s^2 - 1 and two rounded sums."""
    t, freqs = random(5, 2, 1, 8, seed=1), random(5, 1, 1, 4, seed=2).repeat(1, 1, 1, 2)
    flags = {"mla_rotary_interleaved": True, "mla_output_remove_interleaving": True}
    y = apply_rotary_pos_emb(t, freqs, FUSED, **flags)
    back = apply_rotary_pos_emb(y, freqs, FUSED, inverse=True, **flags)
    assert (back - t).abs().max() <= 12 * 2.0**-53 * t.abs().max()


def test_positions_outside_the_table_give_nan_on_both_paths() -> None:
    t, freqs = torch.ones(5, 1, 4), torch.ones(3, 1, 1, 4)
    for fused in (False, True):
        config = replace(FUSED, apply_rope_fusion=fused)
        y = apply_rotary_pos_emb(
            t, freqs, config, torch.tensor([0, 5]), mla_rotary_interleaved=True
        )
        assert y[:3].isfinite().all()
        assert y[3:].isnan().all()


def test_values_are_held_against_the_rows_of_the_table() -> None:
    t, pack, flags = torch.ones(4, 1, 4), torch.tensor([0, 4]), {"mla_rotary_interleaved": True}
    with validation():
        apply_rotary_pos_emb(t, torch.ones(4, 1, 1, 4), FUSED, pack, **flags)
        with pytest.raises(ValueError, match="below the table's length 3"):
            apply_rotary_pos_emb(t, torch.ones(3, 1, 1, 4), FUSED, pack, **flags)


def test_the_argument_stays_as_it_is() -> None:
    t = random(4, 1, 1, 4, seed=1).float()
    before = t.clone()
    apply_rotary_pos_emb(t, torch.ones(4, 1, 1, 4), FUSED, mla_rotary_interleaved=True)
    assert t.equal(before)


def refused(**changes: Any) -> dict[str, Any]:
    call = {
        "t": torch.zeros(4, 1, 8), "freqs": torch.zeros(4, 1, 1, 8), "config": FUSED,
        "cu_seqlens": torch.tensor([0, 4]), "mla_rotary_interleaved": True,
    }  # fmt: skip
    return call | made(changes)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_seqlen": 5}, "at least max_seqlen=5"),
        ({"cu_seqlens": None}, "got neither"),
        ({"cu_seqlens": lambda: torch.tensor([0.0, 4.0])}, "int32 or int64"),
        ({"t": lambda: torch.zeros(4, 1, 1, 8)}, "no packing"),
        (
            {"t": lambda: torch.zeros(4, 1, 1, 8), "cu_seqlens": None, "max_seqlen": 4},
            "no max_seqlen",
        ),
        ({"t": lambda: torch.zeros(5, 1, 1, 8), "cu_seqlens": None}, "at least 5 positions"),
        ({"t": lambda: torch.zeros(4, 1, 8, dtype=torch.int32)}, "floating-point"),
        ({"freqs": lambda: torch.zeros(4, 8)}, r"as \[P, 1, 1, R\]"),
        ({"freqs": lambda: torch.zeros(4, 2, 1, 8)}, r"as \[P, 1, 1, R\]"),
        ({"freqs": lambda: torch.zeros(4, 1, 1, 10)}, "even number of 2 to 8 angles but got 10"),
        ({"freqs": lambda: torch.zeros(4, 1, 1, 3)}, "even number of 2 to 8 angles but got 3"),
        ({"t": lambda: torch.zeros(4, 1, 7)}, "even number of 2 to 7 angles but got 8"),
        ({"config": {"rotary_percent": 0.5}}, "taken twice, or not at all"),
        ({"cp_rank": 2, "cp_size": 2}, "cp_rank < cp_size"),
        (
            {"mla_rotary_interleaved": False, "mla_output_remove_interleaving": True},
            "nothing to remove",
        ),
    ],
)
def test_both_paths_refuse_alike(changes: dict[str, Any], sentence: str, fused: bool) -> None:
    call = refused(**changes)
    fields = changes.get("config", {})
    call["config"] = replace(FUSED, apply_rope_fusion=fused, **fields)
    with pytest.raises(ValueError, match=sentence):
        apply_rotary_pos_emb(**call)


# --- last, since it takes seconds


@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("layout", ["sbhd", "thd"])
def test_the_whole_product_of_flags(layout: str, cp_size: int, launches: list[str]) -> None:
    points = product(layout, cp_size)
    wrong = {
        point: problems
        for index, point in enumerate(points)
        if (problems := judge(point, index, launches))
    }
    assert not wrong, f"{len(wrong)} of {len(points)} points, the first {next(iter(wrong.items()))}"
