"""What a gate makes of sides that cannot be read, of a run at work, and of one that is stopped."""

from __future__ import annotations

import datetime
import subprocess
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity import cli
from parity.arms import Arm
from parity.codegen.compare import Change, Pair
from parity.gate import fingerprint as sources
from parity.gate.command import _compile
from parity.gate.fingerprint import fingerprint
from parity.gate.generated import _regressions
from parity.gate.request import Request
from parity.gate.save import _tell
from parity.gate.setup import _cache, _known, _or_none
from parity.locks import taken
from parity.runs import Run
from parity.spec import OpSpec
from parity.verdict import Exit
from suites.meta.double import FILES, SPEC

TODAY = datetime.date(2026, 1, 1)
ISSUE = (
    '[[issue]]\nop = "double"\nsignature = "s"\nreason = "r"\naddress = "a"\nexpires = 9999-01-01\n'
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def project(folder: Path, issues: str) -> SimpleNamespace:
    """A revision with a file of known issues, and the process that would run it."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[tool.parity]\nknown_issues = "known.toml"\n')
    (folder / "known.toml").write_text(issues)
    return SimpleNamespace(arm=Arm(folder.name, "repository", str(folder)))


def test_known_issues_that_base_has_in_a_broken_file_are_new(here: Path) -> None:
    run = Run.create(here)
    head = project(here / "head", ISSUE)
    team: list[Any] = [project(here / "base", ISSUE), head]
    assert [entry["new"] for entry in _known(team, run).states([], TODAY)] == [False]
    (here / "base" / "known.toml").write_text("[[issue")
    assert [entry["new"] for entry in _known(team, run).states([], TODAY)] == [True]
    assert [entry["new"] for entry in _known([head], run).states([], TODAY)] == [True]


def test_a_base_from_before_the_contracts_has_none() -> None:
    asked: Future[list[OpSpec]] = Future()
    asked.set_result([SPEC])
    assert _or_none(asked) == [SPEC]
    asked = Future()
    asked.set_exception(ImportError("no contracts yet"))
    assert _or_none(asked) == []


def test_sources_that_are_too_many_to_read_are_never_taken_for_others(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "kernel.py").write_text("x" * 11)
    run = Run.create(here / "workspace")
    found = fingerprint(here, "interpreter")
    assert found["arm"]
    assert _cache(run, found) is not None
    monkeypatch.setattr(sources, "LARGEST", 10)
    found = fingerprint(here, "interpreter")
    assert found["arm"] == ""
    assert _cache(run, found) is None


def pair(*reasons: str, arch: str = "sm_90") -> Pair:
    row = {"op": "op", "kernel": "k", "specialisation": "s", "tile": {}, "arch": arch, "case": "c"}
    return Pair(Change.REGRESSION, row, row, reasons)


def test_a_lost_occupancy_step_is_no_regression_of_a_gate() -> None:
    step, spill = "over an occupancy step: 8 to 6 warps", "spills: 0 to 16 bytes"
    assert list(_regressions([pair(step)], "again")) == []
    (item,) = _regressions([pair(step, spill), pair(spill, arch="sm_100")], "again")
    assert item["signature"] == "code | k | spills"
    assert item["cases"] == ["c"]
    assert f"but on sm_90 (s, {{}}): {spill}." in item["sentence"]


def test_code_that_cannot_be_compiled_is_not_run_and_costs_no_verdict(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(here)
    arms = tuple(Arm(name, "import_root", str(here / name)) for name in ("base", "head"))
    described = {
        arm.name: arm.to_dict()
        | {"files": {f"{arm.root}/k.py": arm.name}, "functions": {"k:f": arm.name}}
        for arm in arms
    }
    run.write("run", {"arms": described})
    assert _compile(run, arms, Request(ops="no_such:OPS")) == []
    told = capsys.readouterr().err
    assert "NOT_RUN: generated code was not compared: " in told
    assert "no_such:OPS" in told


def test_a_run_that_is_at_work_is_not_resumed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("base", "head"):
        (here / name).mkdir()
    run = Run.create(here / ".parity")
    request = Request(base_root=here / "base", head_root=here / "head")
    run.write("run", {"kind": "gate", "cases": 1, "request": request.to_dict()})
    lock = taken(run.lock_file)
    assert lock is not None
    with lock:
        assert cli.run(["gate", "--resume"]) == Exit.USAGE
    assert f"stopped but run {run.id} is still at work." in capsys.readouterr().err
    assert run.folder.is_dir()


def test_a_baseline_is_compared_with_the_project_or_a_revision_of_it(here: Path) -> None:
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org")
    (here / "kernel.py").write_text("right\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run((*git, *words), check=True)
    (here / "kernel.py").write_text("changed\n")
    for head, text in ((None, "changed\n"), ("HEAD", "right\n")):
        with Request(baseline=here / "base.jsonl", head=head).arms(here) as (arm,):
            assert arm.name == "head"
            assert Path(arm.root, "kernel.py").read_text() == text


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ({"passed": 1, "failed": 1, "unsupported": 1}, Exit.OK),
        ({"passed": 1, "infrastructure": 1}, Exit.INCONCLUSIVE),
        ({"unsupported": 2}, Exit.NOTHING_COMPARED),
    ],
)
def test_how_saving_a_baseline_ends(statuses: dict[str, int], code: Exit) -> None:
    assert _tell(Path("base.jsonl"), Counter(statuses)) == code


INTERRUPTS = """
import os, signal, time

def double(x):
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)
"""


def test_a_baseline_that_is_stopped_while_it_is_saved_leaves_no_file(here: Path) -> None:
    (here / "root").mkdir()
    for name, text in (FILES | {"own_kernel.py": INTERRUPTS}).items():
        (here / "root" / name).write_text(text)
    options = ["--root", "root", "--ops", "own_ops:OPS", "--cases-per-op", "1"]
    assert cli.run(["baseline", "save", "base.jsonl", *options]) == Exit.INTERRUPTED
    assert not list(here.glob("*.jsonl*")) + list(here.glob(".base*"))
