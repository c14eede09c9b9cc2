"""The whole gate on small ops of its own: real processes, real imports, every outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parity import cli, isolation, load
from parity.gate import repeats, report
from parity.verdict import Exit, Verdict

# One op for each function of `ops_kernel`; all of them double their argument.
CONTRACTS = """
from parity import Input, OpSpec, Output

OPS = tuple(
    OpSpec(
        name=name,
        candidate=f"ops_kernel:{{name}}",
        reference="ops_reference:double",
        inputs=(Input("x", "rows dim"),),
        outputs=(Output("y"),),
        axes={{"dim": range(1, 9)}},
        dtypes={dtypes},
        values=("normal",),
        gradients=("contiguous",),
    )
    for name in {names}
)
"""
REFERENCE = """
def double(x, compute_dtype=None, magnitude=False):
    return x * 2
"""
RIGHT = "x * 2"
WRONG = "x * 3"
UNSUPPORTED = "unsupported()"
PREAMBLE = """
import ctypes, os, signal, time
from parity import Unsupported

def unsupported():
    raise Unsupported("Not in this revision.")

def raises():
    raise RuntimeError("no")
"""


def root(
    folder: Path,
    names: tuple[str, ...],
    bodies: dict[str, str],
    extra: str = "",
    dtypes: tuple[str, ...] = ("float32",),
) -> Path:
    """An import root with the ops ``names``, of which it implements ``bodies``."""
    folder.mkdir()
    functions = [f"def {name}(x):\n    return {body}\n" for name, body in bodies.items()]
    (folder / "ops_contracts.py").write_text(CONTRACTS.format(names=names, dtypes=dtypes))
    (folder / "ops_reference.py").write_text(REFERENCE)
    (folder / "ops_kernel.py").write_text("\n".join([PREAMBLE, *functions, extra]))
    return folder


def gate(base: Path, head: Path, *more: str) -> int:
    arguments = ["--ops", "ops_contracts:OPS", "--cases-per-op", "3", *more]
    return cli.run(["gate", "--base-root", str(base), "--head-root", str(head), *arguments])


def newest(folder: Path) -> Path:
    return max((folder / ".parity" / "runs").iterdir(), key=lambda run: run.stat().st_mtime)


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((newest(folder) / "result.json").read_text())
    return found


def verdicts(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for item in result(folder)["items"]:
        found.setdefault(item["op"], set()).add(item["verdict"])
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_outcome_and_its_replay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {
        "same": RIGHT,
        "broken": RIGHT,
        "mended": WRONG,
        "wrong": WRONG,
        "added": UNSUPPORTED,
        "removed": RIGHT,
        "moved": "(x.double() * 2 * (1 + 2**-25)).float()",
        "stuck": "raises()",
        "absent": UNSUPPORTED,
    }
    new = old | {
        "broken": WRONG,
        "mended": RIGHT,
        "added": RIGHT,
        "removed": UNSUPPORTED,
        "moved": RIGHT,
        "fresh": RIGHT,
    }
    names = tuple(new)
    base, head = root(here / "base", names, old), root(here / "head", names, new)

    assert gate(base, head) == Exit.REGRESSION
    found = verdicts(here)
    assert found.pop("moved") <= {Verdict.IDENTICAL, Verdict.CHANGED_WITHIN_BOUND}
    assert found == {
        "same": {Verdict.IDENTICAL},
        "broken": {Verdict.REGRESSION},
        "mended": {Verdict.FIXED},
        "wrong": {Verdict.PRE_EXISTING},
        "added": {Verdict.NEW_CAPABILITY},
        "removed": {Verdict.LOST_CAPABILITY},
        "stuck": {Verdict.PRE_EXISTING},
        "absent": {Verdict.UNSUPPORTED},
        "fresh": {Verdict.NEW_CAPABILITY},
    }
    document = result(here)
    assert document["schema_version"] == 1
    for name in ("base", "head"):
        files = document["arms"][name]["files"]
        assert [Path(file).name for file in files] == ["ops_kernel.py"]
        assert str(here / name) in next(iter(files))
    frame = load(newest(here))
    assert set(frame["arm"]) == {"base", "head"}
    assert frame["case_id"].nunique() == document["cases"]
    regressions = [item for item in document["items"] if item["verdict"] == "REGRESSION"]
    minimal = {item["minimal_case"] for item in regressions}
    assert not any(item["shrinking_exhausted"] for item in regressions)
    case = json.loads((newest(here) / "cases" / f"{minimal.pop()}.json").read_text())
    assert case["axes"] == {"dim": 1, "tokens": 1}

    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "Verdict: regression in" in output
    assert regressions[0]["replay"] in output
    assert cli.run(regressions[0]["replay"].split()[1:]) == Exit.REGRESSION
    told = capsys.readouterr().out
    assert "FAILED as recorded" in told
    assert f"Ran {head}, sources " in told
    assert "; as recorded\n" in told
    (head / "ops_kernel.py").write_text((base / "ops_kernel.py").read_text())
    assert cli.run(regressions[0]["replay"].split()[1:]) == Exit.OK
    told = capsys.readouterr().out
    assert "FIXED (passes now)" in told
    assert "; changed since: ops_kernel.py\n" in told


def test_a_lost_process_costs_one_case(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash, an exit and a hang in head end up as regressions; the other op is compared."""
    monkeypatch.setattr(isolation, "DEADLINE", 15.0)
    monkeypatch.setattr(report, "SHRINK_SECONDS", 0.0)
    monkeypatch.setattr(repeats, "SECONDS", 0.0)
    names = ("killed", "exits", "leaves", "hangs", "well")
    dtypes = ("float32", "bfloat16")  # a plan of two cases has one of each
    base = root(here / "base", names, dict.fromkeys(names, RIGHT), dtypes=dtypes)
    faults = {
        "killed": "os.kill(os.getpid(), signal.SIGSEGV)",
        "exits": "os._exit(7)",
        "leaves": "ctypes.CDLL(None).exit(0)",
        "hangs": "time.sleep(1000)",
    }
    bodies = {op: f"{fault} if x.itemsize == 2 else {RIGHT}" for op, fault in faults.items()}
    head = root(here / "head", names, bodies | {"well": RIGHT}, dtypes=dtypes)
    assert gate(base, head, "--cases-per-op", "2") == Exit.REGRESSION
    items = result(here)["items"]
    found = {item["op"]: item for item in items if item["verdict"] == "REGRESSION"}
    assert [len(item["cases"]) for item in found.values()] == [1] * 4
    assert found["killed"]["signature"] == "runs | process | crashed | SIGSEGV"
    assert found["exits"]["signature"] == "runs | process | crashed | exit code 7"
    assert found["leaves"]["signature"] == "runs | process | crashed | exit code 0"
    assert found["hangs"]["signature"] == "runs | process | timeout"
    assert {item["op"] for item in items if item["verdict"] == Verdict.IDENTICAL} == {*names}


def test_code_that_does_not_import(here: Path) -> None:
    base = root(here / "base", ("a",), {"a": RIGHT})
    head = root(here / "head", ("a",), {"a": RIGHT}, extra="def (")
    assert gate(base, head) == Exit.REGRESSION
    (item,) = result(here)["items"]
    assert item["signature"].startswith("runs | import | SyntaxError")


def test_nothing_to_compare(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = root(here / "base", ("a",), {})
    head = root(here / "head", ("a",), {})
    assert gate(base, head) == Exit.NOTHING_COMPARED
    assert "Verdict: nothing compared" in capsys.readouterr().out


def test_one_file_in_both_arms_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root(here / "src", ("a",), {"a": RIGHT})
    assert gate(here, here / "src") == Exit.NOTHING_COMPARED
    assert "Nothing compared: both arms imported" in capsys.readouterr().err
    assert list((here / ".parity" / "runs").iterdir()) == []


def test_code_from_elsewhere_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = root(here / "base", ("a",), {"a": RIGHT})
    head = root(here / "head", ("a",), {"a": RIGHT})
    (head / "ops_kernel.py").unlink()
    (head / "ops_kernel.py").symlink_to(base / "ops_kernel.py")
    assert gate(base, head) == Exit.FAULT
    assert "Expected ops_kernel from below" in capsys.readouterr().err


def test_a_project_that_names_no_ops_is_told_how(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("base", "head"):
        root(here / name, ("a",), {"a": RIGHT})
    assert cli.run(["gate", "--base-root", "base", "--head-root", "head"]) == Exit.USAGE
    told = capsys.readouterr().err
    assert "where no others are named, below " in told
    assert "; name yours with --ops, or as ops in [tool.parity] of pyproject.toml." in told
    assert list((here / ".parity" / "runs").iterdir()) == []


SLOW = "(time.sleep(0.3), x * 2)[1]"


def test_interrupted(here: Path) -> None:
    """Ctrl-C ends with what is done: records, a result that says so, and exit code 2."""
    names = ("a",)
    base = root(here / "base", names, {"a": SLOW})
    head = root(here / "head", names, {"a": SLOW})
    roots = ["--base-root", str(base), "--head-root", str(head)]
    command = [sys.executable, "-m", "parity", "gate", *roots, "--ops", "ops_contracts:OPS"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [*command, "--cases-per-op", "60"], env=environment, stdout=subprocess.PIPE, text=True
    )
    give_up = time.monotonic() + 120
    while not list(here.glob(".parity/runs/*/records-*.jsonl")) and time.monotonic() < give_up:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED, output
    assert "Verdict: interrupted" in output
    document = result(here)
    assert document["exit_code"] == Exit.INTERRUPTED
    assert 0 < document["counts"]["NOT_RUN"] <= document["cases"]
    assert len(load(newest(here)))


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_a_repository_with_ops_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = root(here / "project", ("a",), {"a": RIGHT})
    (project / "pyproject.toml").write_text('[tool.parity]\nops = "ops_contracts:OPS"\n')
    git(project, "init", "-q", "-b", "main")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    monkeypatch.chdir(project)
    command = ["gate", "--cases-per-op", "2"]
    assert cli.run(command) == Exit.OK  # nothing changed, so both arms run one commit
    assert verdicts(project) == {"a": {Verdict.IDENTICAL}}
    kernel = project / "ops_kernel.py"
    right = kernel.read_text()
    kernel.write_text(right.replace(RIGHT, WRONG))
    assert cli.run(command) == Exit.REGRESSION
    assert verdicts(project) == {"a": {Verdict.REGRESSION}}
    kernel.write_text(right + "\n")
    assert cli.run(command) == Exit.OK
    assert verdicts(project) == {"a": {Verdict.IDENTICAL}}


ONE_OP = """
from dataclasses import replace
from parity.catalog import resolve

SPEC = resolve("parity")["fused_mla_rope_inplace"]
FEW = {name: values[:1] for name, values in SPEC.flags.items()}
INPUTS = tuple(replace(item, strides=item.strides[:1]) for item in SPEC.inputs)
OPS = (
    replace(
        SPEC, inputs=INPUTS, axes={name: values[:2] for name, values in SPEC.axes.items()},
        layouts=("sbhd",), dtypes=("float32",), table_dtypes=("float32",), flags=FEW,
        tiles={"tile": (None,)}, gradients=("contiguous",), halves=SPEC.halves[:1],
        values=SPEC.values[:1],
    ),
)
"""


def test_one_sign_in_our_own_kernels(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm's ``kernels/`` is what runs, not that of the harness."""
    source = Path(isolation.__file__).parent.parent
    for name in ("kernels", "reference"):
        (here / name).mkdir()
        for file in (source / name).glob("*.py"):
            (here / name / file.name).write_text(file.read_text())
    (here / "one_op.py").write_text(ONE_OP)
    (here / "pyproject.toml").write_text('[tool.parity]\nops = "one_op:OPS"\n')
    git(here, "init", "-q", "-b", "main")
    git(here, "add", ".")
    git(here, "commit", "-q", "-m", "first")
    rotation = here / "kernels" / "rotation.py"
    right = rotation.read_text()
    sign = "left = first * cos_left - second * sin_left"
    assert right.count(sign) == 1
    rotation.write_text(right.replace(sign, sign.replace("-", "+")))
    assert cli.run(["gate", "--cases-per-op", "1"]) == Exit.REGRESSION
    document = result(here)
    head = document["arms"]["head"]["functions"]
    base = document["arms"]["base"]["functions"]
    changed = {name for name in head if head[name] != base[name]}
    assert changed == {"parity.kernels.rotation:rotate"}
    line = document["items"][0]["replay"].split()[1:]
    assert cli.run(line) == Exit.REGRESSION
    rotation.write_text(right + "# nothing\n")
    assert cli.run(line) == Exit.OK
    assert cli.run(["gate", "--cases-per-op", "1"]) == Exit.OK
