"""A recorded base stands for a running one, and only where it would have given the same."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from parity import cli
from parity.gate import baseline
from parity.gate.comparison import Comparison
from parity.gate.fingerprint import contract, differences, fingerprint
from parity.gate.setup import refuse_changes, take
from parity.generate import is_legal, plan
from parity.git import Refused
from parity.record import Record
from parity.runs import Run
from parity.spec import OpSpec
from parity.verdict import Exit
from suites.meta.double import FILES, SPEC

CASE = plan(SPEC, 1, 0)[0]
PASSED = Record(CASE.id, "double", "base", "passed", checks=("values",), digests={"y": "d"})
MADE_OF = {"arm": "a", "harness": "h", "device": "one"}
KERNEL = """
import os
from pathlib import Path

def double(x):
    with (Path(__file__).parent / "calls").open("a") as file:
        file.write(".")
    return x * 2
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two import roots in a folder of their own; their kernels count their calls beside them."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", "head"):
        (tmp_path / name).mkdir()
        calls = f"Path({str(tmp_path)!r}) / 'calls-{name}'"
        kernel = KERNEL.replace('Path(__file__).parent / "calls"', calls)
        for file, text in (FILES | {"own_kernel.py": kernel}).items():
            (tmp_path / name / file).write_text(text)
    return tmp_path


def gate(*more: str) -> int:
    return cli.run(["gate", "--head-root", "head", *more])


PLAN = ("--ops", "own_ops:OPS", "--cases-per-op", "2")


def calls(here: Path, arm: str) -> int:
    """How often the kernel of an arm ran since the last time."""
    file = here / f"calls-{arm}"
    count = file.stat().st_size if file.exists() else 0
    file.unlink(missing_ok=True)
    return count


def counts(here: Path) -> dict[str, int]:
    newest = max((here / ".parity" / "runs").iterdir(), key=lambda run: run.stat().st_mtime)
    found: dict[str, int] = json.loads((newest / "result.json").read_text())["counts"]
    return found


def test_what_was_added_comes_back(tmp_path: Path) -> None:
    kept = baseline.cache(tmp_path, MADE_OF)
    kept.add(SPEC, CASE, PASSED)
    assert baseline.cache(tmp_path, MADE_OF).record(SPEC, CASE) == PASSED


def test_another_contract_or_fingerprint_gives_nothing(tmp_path: Path) -> None:
    baseline.cache(tmp_path, MADE_OF).add(SPEC, CASE, PASSED)
    other = replace(SPEC, bit_equal=True)
    assert contract(other) != contract(SPEC)
    assert baseline.cache(tmp_path, MADE_OF).record(other, CASE) is None
    for name in MADE_OF:
        changed = MADE_OF | {name: "another"}
        assert baseline.cache(tmp_path, changed).record(SPEC, CASE) is None


@pytest.mark.parametrize("place", ["header", "record"])
def test_a_damaged_line_is_not_believed(tmp_path: Path, place: str) -> None:
    kept = baseline.cache(tmp_path, MADE_OF)
    kept.add(SPEC, CASE, PASSED)
    text = kept.path.read_text()
    assert text.count("passed") == 1
    damaged = text.replace("one", "two") if place == "header" else text.replace("passed", "failed")
    kept.path.write_text(damaged)
    assert baseline.cache(tmp_path, MADE_OF).record(SPEC, CASE) is None


def test_a_line_cut_off_costs_one_record(tmp_path: Path) -> None:
    kept = baseline.cache(tmp_path, MADE_OF)
    kept.add(SPEC, CASE, PASSED)
    whole = kept.path.read_bytes()
    for cut in range(len(whole) - 2, whole.index(b"\n"), -97):
        kept.path.write_bytes(whole[:cut])
        again = baseline.cache(tmp_path, MADE_OF)
        assert again.record(SPEC, CASE) is None
        again.add(SPEC, CASE, PASSED)  # joins the line that was cut off
        again.add(SPEC, CASE, PASSED)
        assert baseline.cache(tmp_path, MADE_OF).record(SPEC, CASE) == PASSED


def test_the_cache_stays_small(tmp_path: Path) -> None:
    for number in range(baseline.KEPT + 5):
        baseline.cache(tmp_path, MADE_OF | {"arm": str(number)})
    assert len(list((tmp_path / "cache" / "base").iterdir())) == baseline.KEPT


def test_a_fingerprint_sees_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "base"
    first = fingerprint(root, "interpreter")
    assert fingerprint(root, "interpreter") == first
    (root / "data.bin").write_bytes(b"1")
    second = fingerprint(root, "interpreter")
    assert differences(first, second) == ["another arm"]
    (root / "data.bin").rename(root / "atad.bin")
    assert differences(second, fingerprint(root, "interpreter")) == ["another arm"]
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    (changed,) = differences(second | {"arm": ""}, fingerprint(root, "interpreter") | {"arm": ""})
    assert "TRITON_F32_DEFAULT=ieee" in changed
    (root / "loop").symlink_to(root)  # must end
    fingerprint(root, "interpreter")


def test_the_second_gate_of_a_base_runs_only_head(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage is rerun."""
    assert gate("--base-root", "base", *PLAN) == Exit.OK
    assert calls(here, "base") > 0
    assert calls(here, "head") > 0
    assert gate("--base-root", "base", *PLAN) == Exit.OK
    assert "results are kept from before" in capsys.readouterr().out
    assert calls(here, "base") == 0
    assert calls(here, "head") > 0
    assert set(counts(here)) == {"IDENTICAL"}
    (file,) = (here / ".parity" / "cache" / "base").iterdir()
    file.write_text(file.read_text().replace('"status":"passed"', '"status":"failed"', 1))
    assert gate("--base-root", "base", *PLAN) == Exit.OK
    assert calls(here, "base") > 0


def test_a_baseline_in_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Saved here, it is a base where base's code is not; a change shows as it would there."""
    assert cli.run(["baseline", "save", "base.jsonl", "--root", "base", *PLAN]) == Exit.OK
    assert " cases in base.jsonl (passed " in capsys.readouterr().out
    shutil.rmtree(here / "base")
    kernel = here / "head" / "own_kernel.py"
    right = kernel.read_text()
    kernel.write_text(right.replace("return x * 2", "return (x * 2).add_(0.5)"))
    assert gate("--baseline", "base.jsonl") == Exit.REGRESSION
    assert set(counts(here)) == {"REGRESSION"}


def compared(tmp_path: Path, spec: OpSpec, then: dict[str, str]) -> Comparison:
    """``CASE`` under ``spec`` against a baseline of ``SPEC`` with the fingerprint ``then``."""
    file = baseline.create(tmp_path / "base.jsonl", {"fingerprint": then})
    file.add(SPEC, CASE, PASSED)
    jobs = [] if is_legal(spec, CASE) else [(spec, CASE)]
    comparison = Comparison(Run.create(tmp_path), {}, jobs)
    take(comparison, baseline.read(file.path), MADE_OF)
    comparison.recall()
    comparison.records["head"][CASE.id] = replace(PASSED, arm="head")
    return comparison


@pytest.mark.parametrize(
    ("spec", "then", "verdict", "sentence"),
    [
        (SPEC, MADE_OF, "IDENTICAL", ""),
        (SPEC, MADE_OF | {"arm": "b"}, "IDENTICAL", ""),
        (SPEC, MADE_OF | {"device": "B200"}, "INCONCLUSIVE", "device 'B200' and not 'one'"),
        (SPEC, MADE_OF | {"harness": "i"}, "INCONCLUSIVE", "another harness"),
        (replace(SPEC, bit_equal=True), MADE_OF, "INCONCLUSIVE", "another contract"),
        (replace(SPEC, axes={"dim": (99,)}), MADE_OF, "INCONCLUSIVE", "another contract"),
    ],
)
def test_a_baseline_that_cannot_be_compared_says_why(
    tmp_path: Path, spec: OpSpec, then: dict[str, str], verdict: str, sentence: str
) -> None:
    (judgement,) = compared(tmp_path, spec, then).judgements()
    assert judgement.verdict == verdict
    assert sentence in judgement.sentence


def test_a_baseline_of_other_inputs_is_inconclusive(tmp_path: Path) -> None:
    comparison = compared(tmp_path, SPEC, MADE_OF)
    for arm in ("base", "head"):
        found = comparison.records[arm]
        found[CASE.id] = replace(found[CASE.id], inputs=arm)
    (judgement,) = comparison.judgements()
    assert judgement.verdict == "INCONCLUSIVE"
    assert "different inputs" in judgement.sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gate", "--baseline", "none.jsonl", "--head-root", "head"], "Expected a baseline at"),
        (["gate", "--baseline", "empty.jsonl", "--head-root", "head"], "its first line is none"),
        (["gate", "--baseline", "good.jsonl", "--seed", "1"], "Expected --baseline without --seed"),
        (["gate", "--baseline", "good.jsonl", "--base", "main"], "Expected one base"),
        (["baseline", "save", "base", "--root", "base"], "Expected to write base but the system"),
        (["baseline", "save", "pipe", "--root", "base"], "Expected a file at pipe but it is a"),
        (["baseline", "save", "x.jsonl", "--root", "none"], "to import base from"),
        (["baseline", "save", "x.jsonl", "--root", "base", "--ref", "x"], "either --root or"),
        (["baseline", "save", "x.jsonl", "--root", "base", "--ops", "no:OPS"], "no:OPS"),
        (["gate", "--resume"], "Expected a gate to go on with but found none"),
        (["gate", "--resume", "--seed", "1"], "Expected --resume alone"),
    ],
)
def test_bad_input(
    here: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty.jsonl").write_text("")
    os.mkfifo(here / "pipe")
    plan = {"ops": None, "cases_per_op": 1, "seed": 0}
    good = here / "good.jsonl"
    baseline.create(good, {"fingerprint": MADE_OF, "plan": plan, "arm": {}}).move(good)
    assert cli.run(arguments) == Exit.USAGE
    output = capsys.readouterr()
    assert sentence in output.err
    assert len(output.err.strip().splitlines()) == 1
    assert not (here / "x.jsonl").exists()
    assert (here / "pipe").is_fifo()


def test_a_run_goes_on_only_with_what_it_began_with(tmp_path: Path) -> None:
    run = Run.create(tmp_path)
    before = {"head": {"fingerprint": MADE_OF}}
    refuse_changes(run, before, before)
    for changed, named in (({"arm": "b"}, "another arm"), ({"device": "two"}, "device 'one'")):
        now = {"head": {"fingerprint": MADE_OF | changed}}
        with pytest.raises(Refused, match=f"but head has {named}.*run `parity gate` again"):
            refuse_changes(run, before, now)
    unknown = {"head": {"fingerprint": MADE_OF | {"arm": ""}}}
    with pytest.raises(Refused, match="too many files to tell"):
        refuse_changes(run, unknown, unknown)
