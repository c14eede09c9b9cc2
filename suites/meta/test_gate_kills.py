"""A gate that is killed anywhere goes on, and gives the report that it would have given."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.arms import import_root
from parity.interrupts import result
from parity.isolation import workers
from parity.runs import Run, all_runs
from parity.verdict import Exit

CONTRACTS = """
from parity import Input, OpSpec, Output

OPS = tuple(
    OpSpec(
        name=name,
        candidate=f"own_kernel:{name}",
        reference="own_kernel:reference",
        inputs=(Input("x", "rows dim"),),
        outputs=(Output("y"),),
        axes={"dim": range(1, 9)},
        dtypes=("float32",),
        values=("normal",),
        gradients=("contiguous",),
    )
    for name in ("right", "wrong")
)
"""
KERNEL = """
import time

def reference(x, compute_dtype=None, magnitude=False):
    return x * 2

def right(x):
    time.sleep(0.02)
    return x * 2

def wrong(x):
    time.sleep(0.02)
    return x * {factor}
"""
OPTIONS = ["--base-root", "base", "--head-root", "head", "--ops", "own_contracts:OPS"]
GATE = ["gate", *OPTIONS, "--cases-per-op", "10"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # The same for a gate in this process and in another: it is part of what a gate begins with.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    for name, factor in (("base", 2), ("head", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own_contracts.py").write_text(CONTRACTS)
        (tmp_path / name / "own_kernel.py").write_text(KERNEL.format(factor=factor))
    return tmp_path


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "parity", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(process: subprocess.Popen[str]) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def until(happened: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < give_up, what
        time.sleep(0.02)


def lines(here: Path, name: str) -> int:
    files = list(here.glob(f".parity/runs/*/{name}.jsonl"))
    return len(files[0].read_bytes().splitlines()) if files else 0


def newest(here: Path) -> Run:
    return next(all_runs(here / ".parity"))


def report(run: Run) -> dict[str, Any]:
    return run.document("result") | {"run": ""}


def killed(here: Path, process: subprocess.Popen[str], name: str, count: int) -> None:
    """Kill a gate as soon as a file has so many lines; its workers must end with it."""
    until(lambda: lines(here, name) >= count or process.poll() is not None, f"no {name}")
    assert process.poll() is None, "the gate ended before it was killed"
    workers = children(process)
    process.kill()
    process.communicate()
    until(lambda: not any(map(alive, workers)), "workers outlive their gate")


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_gate_killed_twice_gives_the_same_report(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once among the planned cases, with a line cut off, and once while it shrinks."""
    assert cli.run(GATE) == Exit.REGRESSION
    whole = newest(here)
    whole.folder.rename(here / "whole")
    killed(here, started(*GATE), "records-head", random.randrange(1, 18))
    stopped = newest(here)
    with (stopped.folder / "records-head.jsonl").open("a") as file:
        file.write('{"case_id": "cut o')
    killed(here, started("gate", "--resume"), "probes-head", 1)
    assert cli.run(["gate", "--resume"]) == Exit.REGRESSION
    assert newest(here) == stopped
    assert f"Going on with run {stopped.id} (gate of " in capsys.readouterr().err
    for arm in ("base", "head"):
        ran = Counter(record.case_id for record in stopped.recorded("records", arm))
        assert set(ran.values()) == {1}
    assert report(stopped) == report(Run(here / "whole"))
    assert cli.run(["gate", "--resume"]) == Exit.USAGE  # it came to its end


def test_a_gate_whose_records_are_removed_ends_in_a_sentence(here: Path) -> None:
    process = started(*GATE)
    until(lambda: lines(here, "records-head") >= 1, "no record")
    shutil.rmtree(here / ".parity" / "runs", ignore_errors=True)  # the gate writes into it
    _, told = process.communicate()
    assert process.returncode == Exit.INTERRUPTED
    assert "somebody has removed it, and the records in it are lost" in told
    assert "Traceback" not in told
    assert not list(here.glob(".parity/runs/*/result.json"))


def test_a_killed_worker_costs_one_case_and_two_gates_do_not_meet(here: Path) -> None:
    """Both at once, in one folder; one of them loses a worker."""
    gates = [started(*GATE), started(*GATE)]
    until(lambda: len(list(here.glob(".parity/runs/*/records-head.jsonl"))) == 2, "no records")
    os.kill(children(gates[0])[-1], signal.SIGKILL)
    for process in gates:
        process.communicate(timeout=120)
    assert [process.returncode for process in gates] == [Exit.REGRESSION] * 2
    counts = [json.loads(f.read_text())["counts"] for f in here.glob(".parity/runs/*/result.json")]
    lost = sorted(found.get("INFRASTRUCTURE", 0) for found in counts)
    assert lost[0] == 0
    assert lost[1] <= 1  # between two cases it costs none


def test_a_worker_killed_between_two_tasks_is_replaced(here: Path) -> None:
    """With no task at hand the pool calls itself broken, and takes no more."""
    with workers([import_root("head", here / "head")], here / "triton", here) as (worker,):
        first = result(worker.specs("own_contracts:OPS"))
        process = next(iter(multiprocessing.active_children()))
        os.kill(int(process.pid or 0), signal.SIGKILL)
        until(lambda: not worker.pool.active, "the pool did not notice")
        assert result(worker.specs("own_contracts:OPS")) == first
