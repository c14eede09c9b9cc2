"""Nights and bisections with real processes, on a small op in a git repository of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.history import store
from parity.reports.nightly import markdown
from parity.verdict import Exit
from suites.meta.double import FILES, RIGHT

WRONG = "def double(x):\n    return x * 3\n"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, kernel: str, message: str) -> str:
    (folder / "own_kernel.py").write_text(kernel)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One right commit, one that is wrong, and one after it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    commit(folder, RIGHT, "Double")
    commit(folder, WRONG, "Break | it")
    commit(folder, WRONG + "# as wrong\n", "Say more")
    monkeypatch.chdir(folder)
    return folder


def nightly(*arguments: str) -> int:
    return cli.run(["nightly", "--profile", "dev", "--machine", "one", *arguments])


def newest(folder: Path) -> dict[str, Any]:
    run = max((folder / ".parity" / "runs").iterdir(), key=lambda path: path.name)
    found: dict[str, Any] = json.loads((run / "nightly.json").read_text())
    return found


def test_a_night_finds_what_is_new_and_a_bisection_the_commit(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = repository / "suites" / "corpus" / "double" / "of_no_commit.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("no case")  # a night reads the kept cases of its commit alone
    assert nightly("--ref", "HEAD~2") == Exit.NOTHING_COMPARED
    assert nightly() == Exit.REGRESSION
    found = newest(repository)
    changes = {(item["change"], item["signature"].split(" | ")[1]) for item in found["failures"]}
    assert changes == {("NEW", "y"), ("NEW", "x.grad")}
    since = found["failures"][0]["since"]
    assert [line.partition(" ")[2] for line in since["commits"]] == ["Say more", "Break | it"]
    assert found["last_green"]["last"] == since["last"]
    assert len(store.read(repository / ".parity" / "history").nights) == 2
    capsys.readouterr()
    assert cli.run(["history", "| y |", "--bisect"]) == Exit.REGRESSION
    told = capsys.readouterr().out
    bad = git(repository, "rev-parse", "HEAD~1")
    assert told.rstrip().endswith(f"first bad commit:\n  {bad} A: Break | it")
    assert git(repository, "worktree", "list", "--porcelain").count("worktree ") == 1


INTERRUPTS = """
import os, signal, time
from pathlib import Path

def double(x):
    try:
        Path("interrupted").touch(exist_ok=False)  # by one of several processes
        os.kill(os.getppid(), signal.SIGINT)
    except FileExistsError:
        pass
    time.sleep(600)
"""


def test_a_night_that_is_stopped_before_any_case_leaves_nothing(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(repository, INTERRUPTS, "Interrupt")
    assert nightly() == Exit.INTERRUPTED
    assert "Interrupted before any case ran, so nothing was kept." in capsys.readouterr().err
    assert not list((repository / ".parity" / "runs").iterdir())
    assert not (repository / ".parity" / "history").exists()


def test_history_refuses_in_one_sentence(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["history"]) == Exit.NOTHING_COMPARED
    assert nightly("--ref", "no such") == Exit.USAGE
    assert nightly("--ops", "no_such:OPS") == Exit.USAGE
    assert not list((repository / ".parity").glob("runs/*"))
    assert "Traceback" not in capsys.readouterr().err


def test_words_of_others_stay_in_their_cell_of_the_markdown() -> None:
    hostile = "a | b `c` <img> @all\n# d \x1b[31m"
    stretch = {"last": "1", "last_commit": "a", "first": "2", "first_commit": "b",
               "commits": [hostile], "versions": ["x", "x"]}  # fmt: skip
    item = {"id": "12345678", "change": "NEW", "op": "op", "signature": hostile, "cases": 1,
            "sentence": hostile, "shown": ".x", "case": "0" * 12, "since": stretch}  # fmt: skip
    night = {"tier": "gpu", "versions": "torch", "commit": "b"}
    told = markdown(
        {"night": night, "sentence": "Night.", "failures": [item], "drifts": [], "not_run": [],
         "last_green": None, "other_cases": [], "compared_with": [], "clock": [], "skipped": []}
    )  # fmt: skip
    row = next(line for line in told.splitlines() if line.startswith("| NEW"))
    assert row.replace("\\|", "").count("|") == 6
    assert "\x1b" not in told
    assert not any(line.startswith("# d") for line in told.splitlines())
