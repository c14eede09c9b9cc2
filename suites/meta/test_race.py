"""The race hunt: a planted race, bits that follow the warps, an honest twin, and bad input."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from parity import cli
from parity.catalog import resolve
from parity.provenance import digest
from parity.race import command as race
from parity.race import hunt as race_hunt
from parity.race.command import Plan, Row, line, rows_of, summary, tiles_of
from parity.race.hunt import Outcome, Size, case_of, forced_warps
from parity.spec import Input, OpSpec, Output
from parity.verdict import EXIT_CODES, Exit, Verdict, exit_code
from suites.meta.double import FILES

Tensor = torch.Tensor
CPU = torch.device("cpu")
PLAN = Plan(ropes=(8,), tiles=(1, 4), warps=(1, 4), repeats=10, size=Size(3, 2, 8))
SPEC = OpSpec(
    name="scale",
    candidate=f"{__name__}:honest",
    reference=f"{__name__}:honest",
    inputs=(Input("x", "rows heads dim"),),
    outputs=(Output("y"),),
    axes={"heads": (2,), "dim": (8,)},
)


class _Scale(torch.autograd.Function):
    """0.5 x; ``error`` is added to one element of the result of either pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: Callable[[], float]) -> Tensor:
        ctx.error = error
        return _halved(x, error)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _halved(grads[0], ctx.error), None


def _halved(x: Tensor, error: Callable[[], float]) -> Tensor:
    y = 0.5 * x
    y[0, 0, 0] += error()
    return y


_WARPS = [1]
_TURN = count(1)


def honest(x: Tensor) -> Tensor:
    return _Scale.apply(x, lambda: 0.0)


def racy(x: Tensor) -> Tensor:
    """Wrong in every third run in more than one warp."""
    return _Scale.apply(x, lambda: 4.0 * (_WARPS[0] > 1 and next(_TURN) % 3 == 0))


def follows_warps(x: Tensor) -> Tensor:
    return _Scale.apply(x, lambda: 4.0 * (_WARPS[0] > 1))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of warps without a GPU: the planted ops look at ``_WARPS``."""

    @contextmanager
    def forced(warps: int, device: torch.device) -> Iterator[list[int]]:
        _WARPS[0] = warps
        yield [warps]

    monkeypatch.setattr(race_hunt, "forced_warps", forced)
    monkeypatch.setitem(globals(), "_TURN", count(1))


def _rows(candidate: str) -> dict[tuple[str, int], Row]:
    spec = replace(SPEC, candidate=f"{__name__}:{candidate}")
    return {(row.passing, row.warps): row for row in rows_of([spec], PLAN, CPU)}


@pytest.mark.usefixtures("pretended")
def test_a_race_is_nondeterministic_and_shows_its_rate() -> None:
    rows = _rows("racy")
    assert {key: row.verdict for key, row in rows.items()} == {
        ("forward", 1): Verdict.IDENTICAL,
        ("forward", 4): Verdict.NONDETERMINISTIC,
        ("backward", 1): Verdict.IDENTICAL,
        ("backward", 4): Verdict.NONDETERMINISTIC,
    }
    racing = rows["forward", 4]
    assert racing.outcome is not None
    assert (racing.outcome.runs, racing.outcome.wrong, racing.outcome.elements) == (10, 3, 3)
    assert racing.outcome.largest == pytest.approx(4.0, abs=0.1)  # bf16 near 4
    assert "3 of 10 runs (30.0%) differ from one warp" in line(racing)
    assert exit_code(row.verdict for row in rows.values()) == Exit.INCONCLUSIVE


@pytest.mark.usefixtures("pretended")
def test_bits_that_follow_the_warps_are_no_race_and_no_pass() -> None:
    row = _rows("follows_warps")["forward", 4]
    assert row.verdict == Verdict.INCONCLUSIVE
    assert row.outcome is not None
    assert (row.outcome.wrong, row.outcome.unsteady) == (10, 0)
    assert EXIT_CODES[row.verdict] == Exit.INCONCLUSIVE


@pytest.mark.usefixtures("pretended")
def test_an_honest_op_is_identical_with_a_stated_confidence() -> None:
    rows = _rows("honest")
    assert {row.verdict for row in rows.values()} == {Verdict.IDENTICAL}
    assert exit_code(row.verdict for row in rows.values()) == Exit.OK
    assert "95 % confidence: at most 30.00%" in line(rows["forward", 4])
    assert summary(list(rows.values())) == "4 settings: IDENTICAL 4."


def test_the_bound_is_three_over_n() -> None:
    row = Row("op", "forward", 64, {}, 4, Verdict.IDENTICAL, Outcome(200, 0, 0, 0, 0.0))
    assert "0 of 200 runs differ from one warp (95 % confidence: at most 1.50%)" in line(row)
    assert (1 - 3 / 200) ** 200 < 0.05  # a higher rate would have shown with 95 % probability


def test_an_op_that_launches_no_kernel_is_no_pass() -> None:
    rows = list(rows_of([SPEC], PLAN, CPU))
    assert {row.verdict for row in rows} == {Verdict.INFRASTRUCTURE}
    assert "got launches in no warps" in rows[0].reason
    assert exit_code(row.verdict for row in rows) == Exit.INCONCLUSIVE


def test_our_kernels_are_hunted_with_forced_warps() -> None:
    """The real kernels, interpreted at a tiny size: the machinery, not the race."""
    if torch.cuda.is_available():
        pytest.skip("NOT_RUN: the interpreter's launch path is not used on a GPU")
    specs = [spec for name, spec in resolve("parity").items() if name == "fused_mla_rope_inplace"]
    rows = list(rows_of(specs, replace(PLAN, tiles=(4,), repeats=1), CPU))
    assert [(row.verdict, row.reason) for row in rows] == [(Verdict.IDENTICAL, "")] * 4
    json.dumps([asdict(row) for row in rows])


def test_forced_warps_ends_with_its_block() -> None:
    kind = race_hunt._function_kind(CPU)
    before = kind.run
    with forced_warps(2, CPU):
        assert kind.run is not before
    assert kind.run is before


def test_every_op_of_the_catalogs_has_a_case_and_tiles() -> None:
    plan = Plan((64,), (1, 2, 4, 16), (4,), 1, Size())
    for spec in (*resolve("parity").values(), *resolve("megatron").values()):
        case = case_of(spec, 64, plan.size, tiles_of(spec, plan)[0])
        assert (case.axes["heads"], case.axes["rope_dim"], case.axes["seq"]) == (32, 64, 4096)
        (name,) = spec.tiles
        assert len(tiles_of(spec, plan)) == sum(v in plan.tiles for v in spec.tiles[name]) >= 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tiles", "0"], "Expected --tiles as whole numbers"),
        (["--warps", "four"], "Expected --warps as whole numbers"),
        (["--repeats", "0"], "0 is not in the range"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["race", *arguments]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_tile_that_an_op_lacks_is_refused_and_not_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Plan] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("parity.interpreter.prepare", lambda: "gpu")
    monkeypatch.setattr(race, "rows_of", lambda specs, plan, device: ran.append(plan) or [])
    arguments = ["race", "--only", "inplace", "--ops", "parity"]
    for tiles in ("3", "1,3"):
        assert cli.run([*arguments, "--tiles", tiles]) == Exit.USAGE
        told = "Expected --tiles among 1, 2, 4, 8, 16, 32, those of fused_mla_rope_inplace, but got"
        assert f"{told} 3; name others" in capsys.readouterr().err
    assert not ran
    assert cli.run([*arguments, "--tiles", "1,8"]) == Exit.NOTHING_COMPARED
    monkeypatch.setattr(race, "_contracts", lambda *_: (list(resolve("megatron").values()), {}))
    assert cli.run(["race"]) == Exit.NOTHING_COMPARED  # some lack a default
    assert [plan.tiles for plan in ran] == [(1, 8), (1, 2, 4, 16)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an op of its own, whose modules nothing else is named like."""
    for name, text in FILES.items():
        (tmp_path / name.replace("own", "raced")).write_text(text.replace("own_", "raced_"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("raced_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_the_projects_own_op_is_found_and_named(project: Path) -> None:
    (spec,), code = race._contracts(None, None, "doub")
    assert spec.name == "double"
    assert code["files"] == {
        str(project / "raced_kernel.py"): digest((project / "raced_kernel.py").read_bytes())
    }


def test_roots_and_names_that_lead_nowhere_are_refused(project: Path) -> None:
    with pytest.raises(ValueError, match="Expected a folder"):
        race._contracts(None, project / "gone", "")
    with pytest.raises(ValueError, match="Expected --only to name an op among double but got"):
        race._contracts(None, None, "no such op")
    (project / "elsewhere").mkdir()
    with pytest.raises(ValueError, match=r"Expected raced_kernel from below .*elsewhere but"):
        race._contracts(None, project / "elsewhere", "")


def test_what_an_op_lacks_is_no_pass() -> None:
    spec = replace(SPEC, candidate=f"{__name__}:gone")
    rows = list(rows_of([spec], replace(PLAN, warps=(1,)), CPU))
    assert {row.verdict for row in rows} == {Verdict.UNSUPPORTED}
    assert line(rows[0]) == f"UNSUPPORTED scale forward, rope 8, 1 warp: {rows[0].reason}"
    assert rows[0].reason == f"This revision has no function {spec.candidate!r}."
    assert exit_code(row.verdict for row in rows) == Exit.NOTHING_COMPARED


def test_without_a_gpu_nothing_is_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("NOT_RUN: there is a GPU")
    assert cli.run(["race"]) == Exit.USAGE
    assert "Expected a GPU" in capsys.readouterr().err
