"""However many workers pytest has, a session draws the same numbers and leaves the same records."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "own_op"
SIGN = ("product - tl.load(update", "product + tl.load(update")
FEW = "draw or " + " or ".join(f"difference-{digit}" for digit in "012")  # of the planned cases
DRAWS = """
import random
from pathlib import Path

import numpy
import pytest
import torch

@pytest.mark.parametrize("number", range(4))
def test_draw(number):
    drawn = (random.random(), numpy.random.rand(), float(torch.rand(())))
    Path(f"drawn-{number}.txt").write_text(repr(drawn))
"""


def session(folder: Path, *options: str) -> tuple[list[str], list[str]]:
    """The sorted records of a session on a wrong op, and what its tests drew."""
    folder.mkdir()
    for file in EXAMPLE.iterdir():
        if file.suffix in (".py", ".toml"):
            (folder / file.name).write_text(file.read_text().replace(*SIGN))
    (folder / "test_draws.py").write_text(DRAWS)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    plugins = ["-p", "parity.pytest_plugin", "-p", "no:randomly"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-k", FEW, *options],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    files = (folder / ".parity" / "runs").glob("*/records-*.jsonl")
    records = sorted(line for file in files for line in file.read_text().splitlines())
    return records, [file.read_text() for file in sorted(folder.glob("drawn-*.txt"))]


def test_workers_change_neither_records_nor_numbers(tmp_path: Path) -> None:
    records, drawn = session(tmp_path / "alone", "-p", "no:xdist")
    assert '"status": "failed"' in "".join(records)
    assert len(set(drawn)) == 4
    assert session(tmp_path / "two", "-n", "2") == (records, drawn)
    other = session(tmp_path / "seed", "-p", "no:xdist", "--parity-seed", "1")
    assert not set(other[1]) & set(drawn)
