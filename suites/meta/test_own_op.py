"""The documented example of a user's own op does what its page says, as the page prints it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "your-own-op.md"
EXAMPLE = ROOT / "docs" / "examples" / "own_op"
FILES = ("own_op.py", "pyproject.toml", "test_own_op.py")
SIGN = ("product - tl.load(update", "product + tl.load(update")
ORDER = (  # the same product with its factors swapped: other code, the same bits
    "tl.load(gate + at, at < count).to(tl.float32) * tl.load(x + at, at < count)",
    "tl.load(x + at, at < count).to(tl.float32) * tl.load(gate + at, at < count)",
)


def printed_files() -> dict[str, str]:
    """Every file that the page announces as "`name`: ..." and prints in the next code block."""
    announced = re.findall(r"^`(\S+)`: .*?^```\w+\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return dict(announced)


def example(folder: Path, change: tuple[str, str] | None = None) -> Path:
    """The printed files in a folder of their own, with one piece of the module replaced."""
    folder.mkdir()
    for name, text in printed_files().items():
        if change and name == "own_op.py":
            assert text.count(change[0]) == 1
            text = text.replace(*change)
        (folder / name).write_text(text)
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``python -m words...`` in a folder, by this interpreter with this checkout on its path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def gate(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and ``result.json`` of a small gate run in a folder."""
    ran = run(folder, "parity", "gate", "--cases-per-op", "1", *options)
    results = list((folder / ".parity" / "runs").glob("*/result.json"))
    assert len(results) == 1, ran.stdout + ran.stderr
    return ran.returncode, json.loads(results[0].read_text())


def test_the_page_prints_the_files_as_they_are() -> None:
    assert printed_files() == {name: (EXAMPLE / name).read_text() for name in FILES}


def test_pytest_passes_the_example(tmp_path: Path) -> None:
    ran = run(example(tmp_path / "own"), "pytest", "-p", "parity.pytest_plugin", "-p", "no:xdist")
    assert ran.returncode == 0, ran.stdout
    passed = re.search(r"parity: (\d+) cases: (\d+) passed", ran.stdout)
    assert passed is not None, ran.stdout
    assert int(passed[1]) == int(passed[2]) > 10


def test_pytest_fails_a_wrong_sign_with_a_case_that_replays(tmp_path: Path) -> None:
    folder = example(tmp_path / "own", SIGN)
    ran = run(folder, "pytest", "-x", "-p", "parity.pytest_plugin", "-p", "no:xdist")
    assert ran.returncode == 1, ran.stdout
    assert "CaseFailed: Expected y[" in ran.stdout
    assert "to agree with the float64 oracle" in ran.stdout
    replay = re.search(r"run it again: parity (replay \w+)", ran.stdout)
    assert replay is not None, ran.stdout
    again = run(folder, "parity", *replay[1].split())
    assert again.returncode == 1, again.stdout + again.stderr
    assert "FAILED as recorded" in again.stdout


def test_pytest_says_of_a_wrong_contract_one_sentence(tmp_path: Path) -> None:
    folder = example(tmp_path / "own", ("compute_dtype=torch.float32, ", ""))
    told = run(folder, "pytest", "-x", "-p", "parity.pytest_plugin", "-p", "no:xdist").stdout
    assert "CaseFailed: Expected the reference 'own_op:reference'" in told
    assert "NameError at own_op.py:47: name 'compute_dtype' is not defined; mend it" in told
    assert "The above exception" not in told
    assert "During handling" not in told


def test_gate_on_two_folders_finds_the_same_numbers_identical(tmp_path: Path) -> None:
    roots = ["--base-root", str(example(tmp_path / "before"))]
    roots += ["--head-root", str(example(tmp_path / "after", ORDER))]
    code, result = gate(tmp_path, "--ops", "own_op:OPS", *roots)
    assert code == 0
    assert set(result["counts"]) == {"IDENTICAL"}


@pytest.mark.skipif(shutil.which("git") is None, reason="NOT_RUN: git is needed for a repository")
def test_gate_in_a_repository_finds_a_wrong_sign(tmp_path: Path) -> None:
    folder = example(tmp_path / "own")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "example"]):
        subprocess.run([*git, *words], check=True)
    module = folder / "own_op.py"
    module.write_text(module.read_text().replace(*SIGN))
    code, result = gate(folder)
    assert code == 1
    assert set(result["counts"]) == {"REGRESSION"}
