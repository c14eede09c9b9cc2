"""Files that we wrote and that something damaged since: a sentence names them, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.codegen import measure
from parity.gate import baseline as saved
from parity.gate.request import unfinished
from parity.gate.setup import refuse_changes
from parity.mutation.baseline import baseline
from parity.mutation.hunt import Lab
from parity.mutation.outcomes import Journal, Outcome
from parity.record import Record
from parity.runs import Run
from parity.verdict import Exit

DAMAGED = [b"", b"{", b"[]\n", b"{}\n", b"1\n", bytes(range(256)) + b"\n"]


@pytest.mark.parametrize(
    "damaged", [*DAMAGED, b'{"key": ["h"], "files": {}, "records": [], "reached": {"c": {}}}']
)
def test_what_cases_do_without_a_mutant_is_found_out_again(
    tmp_path: Path, damaged: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = Lab(tmp_path, tmp_path / "cache", tmp_path / "log")
    kept = tmp_path / "baseline.json"
    found = [baseline(lab, [], "h", kept, lambda done, total: None)]
    assert capsys.readouterr().err == ""
    whole = kept.read_bytes()
    for content in (damaged, whole):
        kept.write_bytes(content)
        found.append(baseline(lab, [], "h", kept, lambda done, total: None))
        assert kept.read_bytes() == whole
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Passed over {kept}, which is damaged (")
    assert found == found[:1] * 3


@pytest.mark.parametrize("damaged", DAMAGED)
def test_damaged_lines_of_the_outcomes_are_numbered(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "outcomes.jsonl"
    Journal(path).add("a", "1", Outcome("killed", check="values"))
    path.write_bytes(path.read_bytes() + damaged)
    Journal(path).add("b", "2", Outcome("survived"))
    journal = Journal(path)
    assert list(journal.found) == ["a", "b"]
    assert bool(journal.damaged) == bool(damaged)
    assert 1 not in journal.damaged


def test_a_baseline_with_a_damaged_line_is_refused_by_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record may be of a case that head no longer knows, and nothing else would miss it."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "base.jsonl"
    plan = {"ops": None, "cases_per_op": 1, "seed": 0}
    saved.create(file, {"plan": plan, "arm": {}, "fingerprint": {}})
    entries = [saved._line({"record": {"case_id": name}}) for name in "abc"]
    file.write_bytes(file.read_bytes() + b"".join(entries))
    saved.read(file).move(file)
    assert list(saved.saved(file).entries) == ["a", "b", "c"]
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    for damaged, told in (
        (whole.replace(b'"b"', b'"d"'), "its line 3 is damaged; copy it again"),
        (whole[:-9], "its line 5 is damaged; copy it again"),
        (b"".join(lines[:-1]), "but its end is cut off; copy it again, or record"),
        (lines[0], "but its end is cut off; copy it again, or record"),
        (b"".join(lines[:2] + lines[3:]), "but its end is cut off"),
    ):
        file.write_bytes(damaged)
        assert cli.run(["gate", "--baseline", str(file)]) == Exit.USAGE
        assert told in capsys.readouterr().err


def test_a_file_of_the_cache_is_no_baseline(tmp_path: Path) -> None:
    kept = saved.cache(tmp_path, {"arm": "x"})
    with pytest.raises(ValueError, match="but it is one of the cache; name another"):
        saved.saved(kept.path)


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, damaged: bytes) -> None:
    entry = tmp_path / "entry.json"
    entry.write_bytes(damaged)
    assert measure._read(entry) is None
    entry.write_text(json.dumps({"schema_version": measure.SCHEMA_VERSION, "registers": 1}))
    assert measure._read(entry) == {"registers": 1}


@pytest.mark.parametrize("asked", [[], 1, {"nope": 1}, {"base_root": 3}])
def test_a_gate_of_another_shape_does_not_go_on(tmp_path: Path, asked: object) -> None:
    run = Run.create(tmp_path / ".parity")
    run.write("run", {"kind": "gate", "cases": 1, "request": asked, "arms": {}})
    with pytest.raises(ValueError, match=f"can read in {run.folder} but got: .*; run `parity gate"):
        unfinished(tmp_path)


@pytest.mark.parametrize("before", [[], {}, {"head": []}, {"head": {"fingerprint": 1}}])
def test_arms_of_another_shape_are_no_arms_to_go_on_with(tmp_path: Path, before: Any) -> None:
    run = Run.create(tmp_path)
    with pytest.raises(ValueError, match=f"Expected files that .* read in {run.folder} but "):
        refuse_changes(run, before, {"head": {"fingerprint": {"arm": "x"}}})


def test_records_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """A last line that was cut off runs again; damage before it is named, with what to do."""
    run = Run.create(tmp_path)
    for case in "ab":
        run.add(Record(case, "op", "head", "passed", checks=("values",)))
    path = run.folder / "records-head.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    for rest in (second[:-9], second[:-1], b"\0" * 99, b"\xff"):
        path.write_bytes(first + rest)
        assert [record.case_id for record in run.recorded("records", "head")] == ["a"]
        assert path.read_bytes() == first
    for damaged in (first[:-9] + b"\n", b"[]\n", b"\n", b"{}\n"):
        path.write_bytes(damaged + second)
        with pytest.raises(ValueError, match=f"line 1 of {path} but .* delete the line, or"):
            run.recorded("records", "head")
