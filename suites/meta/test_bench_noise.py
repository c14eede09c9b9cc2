"""Whether one arm is slower: a planted difference is found, noise of several kinds is not."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from math import log
from pathlib import Path
from statistics import median

import pytest

import parity
from parity.bench import command, compare, stand
from parity.bench.noise import ROUNDS, Compared, Speed, interleaved, interval, judge
from parity.cli import run
from parity.verdict import Exit

COMPARISONS = 28  # of a whole run: 13 workloads in two passes, and host time twice


class Machine:
    """A clock that wanders for all arms alike, noise that only slows down, a bias by process."""

    def __init__(self, seed: int, **arms: float) -> None:
        self.random, self.drift, self.arms = random.Random(seed), 1.0, arms

    def timer(self, name: str) -> Callable[[], float]:
        def replay() -> float:
            self.drift *= 1 + self.random.gauss(0.0001, 0.0005)
            spike = self.random.random() < 0.1
            slow = self.random.expovariate(100) + (self.random.uniform(0, 1) if spike else 0)
            return 150 * self.arms[name] * self.drift * (1 + slow)

        return lambda: median(replay() for _ in range(stand.REPLAYS))

    def judged(self) -> Compared:
        times = interleaved({name: self.timer(name) for name in self.arms})
        return judge(times, COMPARISONS)


@pytest.mark.parametrize("seed", range(200))
def test_noise_is_no_difference(seed: int) -> None:
    assert Machine(seed, base=1.0, head=1.0, control=1.0).judged().verdict is Speed.SAME


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_difference_is_found_both_ways(seed: int) -> None:
    slower = Machine(seed, base=1.0, head=1.05, control=1.0).judged()
    assert slower.verdict is Speed.SLOWER
    assert slower.ratio == pytest.approx(1.05, abs=0.01)
    assert Machine(seed, base=1.05, head=1.0, control=1.05).judged().verdict is Speed.FASTER


@pytest.mark.parametrize("seed", range(20))
def test_what_two_processes_of_one_code_differ_by_does_not_count(seed: int) -> None:
    """Without the control head would be blamed for its place in memory."""
    biased = Machine(seed, base=1.0, head=1.08, control=1.09)
    assert biased.judged().verdict is Speed.SAME
    times = interleaved({name: biased.timer(name) for name in biased.arms})
    assert judge(times | {"control": times["base"]}, COMPARISONS).verdict is Speed.SLOWER


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """At most one draw in ten where a tenth is asked for: order statistics are conservative."""
    generator = random.Random(0)
    draws = [[generator.expovariate(1) for _ in range(ROUNDS)] for _ in range(2000)]
    missed = 0
    for draw in draws:
        low, high = interval(draw, 0.1)
        missed += not low <= log(2) <= high
    assert 60 < missed <= 200
    with pytest.raises(ValueError, match="Expected enough rounds"):
        interval([1.0, 2.0], 0.01)


def test_every_timer_stands_in_every_place() -> None:
    asked: list[str] = []

    def timer(name: str) -> Callable[[], float]:
        return lambda: float(asked.append(name) or 1)

    interleaved({name: timer(name) for name in "abc"}, rounds=6)
    rounds = [tuple(asked[i : i + 3]) for i in range(0, 18, 3)]
    assert len(set(rounds)) == 6


def test_the_exit_code_and_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = Compared(Speed.SLOWER, 100.0, 110.0, 1.1, 1.09, 1.11, 1.01)
    rows, code = compare.show(iter([("a workload, forward", found)]))
    assert code is Exit.REGRESSION
    assert rows[0]["ratio"] == 1.1
    line = "SLOWER a workload, forward: base 100.0 us, head 110.0 us, ratio 1.100"
    assert line in capsys.readouterr().out


def test_tasks_are_chosen_by_name_and_need_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(stand.tasks("")) == COMPARISONS
    assert stand.tasks("THD 4096") == [
        "concat 4096x64x(512+64) THD 4096, forward",
        "concat 4096x64x(512+64) THD 4096, backward",
    ]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(["bench", "--base", "HEAD~1"]) == Exit.USAGE
    assert "Expected a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "rows", "hosts"),
    [("concat, forward", 0, 0), ("THD 4, forward", 2, 0), ("THD 4, ", 4, 0), ("host time", 0, 2),
     (", forward", 13, 2), ("and backward", 0, 2), ("", 26, 2)],
)  # fmt: skip
def test_whatever_is_asked_for_is_timed(
    only: str, rows: int, hosts: int,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """One that holds a pass was accepted, and then nothing was timed."""
    row = command.Row("a workload", "forward", *[1.0] * 3, "copy", 1.0, 1.06, True, None, 1, 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.Stream", lambda: None)
    monkeypatch.setattr("torch.cuda.stream", lambda _: nullcontext())
    monkeypatch.setattr(command, "not_at_parity", lambda: iter(()))
    monkeypatch.setattr(command, "_row", lambda *given: row)
    monkeypatch.setattr(command, "host_costs", lambda _: {"a forward": 1.0, "a both": 2.0})
    assert run(["bench", "--only", only]) == (Exit.OK if rows + hosts else Exit.USAGE)
    lines = capsys.readouterr().out.splitlines()
    timed = sum("a workload" in line for line in lines), sum("host time" in line for line in lines)
    assert timed == (rows, hosts)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--base", "HEAD", "--only", "no such thing"], "contains 'no such thing' but there is no"),
        (["--only", "no such thing"], "Expected a workload whose name contains"),
        (["--upstream", "nowhere"], "Expected a folder to import megatron from at nowhere"),
        (["--head", "HEAD", "--harness"], "Expected one of --harness, --base or --head but got"),
        (
            ["--cpu-tier", "--upstream", "x"],
            "Expected one of --cpu-tier, --upstream but got all of",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *options]) == Exit.USAGE
    assert told in capsys.readouterr().err


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_a_wrong_kernel_gets_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arms are asked for their faults before anything is timed, so this needs no GPU."""
    source = Path(parity.__file__).parent.parent
    for name in ("kernels", "reference"):
        shutil.copytree(
            source / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    rotation = tmp_path / "kernels" / "rotation.py"
    text, sign = rotation.read_text(), "left = first * cos_left - second * sin_left"
    assert text.count(sign) == 1
    rotation.write_text(text.replace(sign, sign.replace("-", "+")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert run(["bench", "--base", "HEAD", "--only", "concat 4096x1x"]) == Exit.REGRESSION
    told = capsys.readouterr()
    assert "Expected kernels at parity but in head: Expected" in told.err
    assert "us" not in told.out
