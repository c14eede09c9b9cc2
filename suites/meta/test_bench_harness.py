"""What `parity bench --harness` counts as time of the code under test."""

import json
import sys
from pathlib import Path

import pytest
import torch

from parity import cli, observe, runner
from parity.bench import harness
from parity.bench.harness import CALLED, Stopwatch
from parity.runner import device
from parity.verdict import Exit
from suites.meta.double import FILES


def test_only_the_outermost_call_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 3.5, 10.0, 11.0])
    monkeypatch.setattr(harness, "perf_counter", lambda: next(ticks))
    watch = Stopwatch()
    inner = watch.timed(lambda: 7)
    assert watch.timed(lambda: inner())() == 7
    assert watch.seconds == 2.5
    with pytest.raises(ZeroDivisionError):
        watch.timed(lambda: 1 / 0)()
    assert watch.seconds == 3.5


def test_candidates_references_and_backwards_are_watched_and_given_back() -> None:
    before = [getattr(module, name) for module, name in CALLED], torch.autograd.grad
    watch = Stopwatch()
    with watch.watching():
        found = observe.candidate_function("math:sqrt")
        assert found(4.0) == 2.0
        once = watch.seconds
        x = torch.ones(1, requires_grad=True)
        torch.autograd.grad(x * 2, x)
    assert 0 < once < watch.seconds
    assert ([getattr(module, name) for module, name in CALLED], torch.autograd.grad) == before


def test_the_cost_of_a_case_of_the_projects_own_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name.replace("own", "timed")).write_text(text.replace("own_", "timed_"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    extras = runner.EXTRAS
    assert cli.run(["bench", "--harness", "--json", "cost.json"]) == Exit.OK
    cost = json.loads((tmp_path / "cost.json").read_text())["harness"]
    assert cost["tier"] == ("gpu" if device().type == "cuda" else "cpu")
    assert cost["cases"] == 1  # all that are planned for an op without flags
    assert 0 < cost["share"] < 1
    told = capsys.readouterr().out
    assert told.startswith(f"{cost['cases_per_second']:.1f} cases a second in one process on the ")
    repeated = f"{cost['repeated_per_second']:.1f} with a repeat as the only further run"
    assert told.endswith(f"spent by the harness itself; {repeated} ({cost['cases']} cases)\n")
    assert runner.EXTRAS is extras
