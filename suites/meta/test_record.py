"""Records survive a crash at any byte, and say themselves when they are no records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import parity
from parity.record import (
    Finding,
    Record,
    append,
    as_lines,
    mend,
    read,
    write_json,
    write_text,
)

FINDING = Finding("values", "y", "wrong", "far off", "row 0", "a.py:f", "Wrong.")
BARE = Finding("runs", "forward", "ValueError")
PASSED = Record("c1", "op", "head", "passed", checks=("values", "guards"))
FULL = Record(
    "c2",
    "op",
    "base",
    "failed",
    findings=(FINDING, BARE),
    checks=("values",),
    digests={"y": "d"},
    headroom={"y": 0.5},
    inputs="i",
    expected="e",
    reason="r",
    ulps={"y": [1, 2]},
    maps={"y": {"rows": [0]}},
    hazards=(BARE,),
    cost={"forward launches": 2},
    traffic={"y": {"loaded": 4}},
    not_run={"reads": "n"},
)


def test_a_signature_is_what_two_failures_of_one_kind_share() -> None:
    assert FINDING.signature == "values | y | wrong | far off | row 0 | a.py:f"
    assert FINDING.family == "values | y | wrong | a.py:f"
    assert BARE.signature == BARE.family == "runs | forward | ValueError"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"status": "fine"},
            "Expected a status among ('passed', 'failed', 'unsupported', 'crashed'",
        ),
        ({"status": "failed"}, "when a case failed but got status 'failed' with 0 findings."),
        ({"findings": (BARE,)}, "when a case failed but got status 'passed' with 1 findings."),
        ({"checks": ()}, "Expected at least one check behind status 'passed' but got none."),
        (
            {"status": "failed", "findings": (BARE,), "checks": ()},
            "Expected at least one check behind status 'failed' but got none.",
        ),
    ],
)
def test_what_is_no_record_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match="Expected") as refused:
        replace(PASSED, **given)
    assert sentence in str(refused.value)


def test_a_case_that_did_not_run_needs_no_check() -> None:
    for status in ("unsupported", "crashed", "timeout", "infrastructure"):
        assert replace(PASSED, status=status, checks=()).status == status


def test_what_did_not_run_is_told_in_one_line_for_each_reason() -> None:
    skipped = {"b": "no GPU", "c": "too large", "a": "no GPU"}
    assert replace(PASSED, not_run=skipped).gaps() == ["a, b: no GPU", "c: too large"]
    assert PASSED.gaps() == []


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append(path, PASSED)
    append(path, FULL)
    assert list(read(path)) == [PASSED, FULL]
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["schema_version"] == second["schema_version"] == 2
    assert list(first) == sorted(first)
    path.write_text(as_lines([FULL]))
    assert list(read(path)) == [FULL]
    assert [file.name for file in path.parent.iterdir()] == ["records.jsonl"]


def test_an_older_record_without_hazards_is_read(tmp_path: Path) -> None:
    document = {name: value for name, value in FULL.to_dict().items() if name != "hazards"}
    assert Record.from_dict(document) == replace(FULL, hazards=())


def test_a_crash_at_any_byte_costs_the_last_record_only(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(as_lines([PASSED, PASSED, FULL]))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in (*range(0, len(whole), 37), first, len(whole)):
        path.write_bytes(whole[:length])
        left = [PASSED, PASSED, FULL][: whole[:length].count(b"\n")]
        assert list(read(path)) == left
        mend(path)
        append(path, FULL)
        assert list(read(path)) == [*left, FULL]


@pytest.mark.parametrize("line", ["{", "[]", '{"case_id": "c"}', '{"unknown": 1, "checks": []}'])
def test_a_broken_line_that_no_crash_explains_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    append(path, PASSED)
    path.write_text(path.read_text() + line + "\n")
    records = read(path)
    assert next(records) == PASSED
    with pytest.raises(ValueError, match="Expected a record in line 2 of ") as refused:
        next(records)
    assert f"{path} but got" in str(refused.value)
    assert str(refused.value).endswith("; delete the line, or move the folder of that run away.")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "text"
    write_text(path, "before é")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "after \ud800")
    assert path.read_text(encoding="utf-8") == "before é"
    write_json(path, {"b": 1, "a": [2]})
    assert path.read_text() == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'


def test_the_records_of_a_run_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "records-head.jsonl").write_text(as_lines([PASSED]))
    (tmp_path / "records-base.jsonl").write_text(as_lines([FULL]))
    table = parity.load(tmp_path)
    assert table["case_id"].tolist() == ["c2", "c2", "c1"]
    assert table["findings"].tolist() == [2, 2, 0]
    assert table["check"].tolist() == ["values", "runs", ""]
    assert table["tensor"].tolist() == ["y", "forward", ""]
    assert table["error"].tolist() == ["wrong", "ValueError", ""]
    assert table["signature"].tolist() == [FINDING.signature, BARE.signature, ""]
    assert table["sentence"].tolist() == ["Wrong.", "", ""]
    with pytest.raises(ValueError, match=r"Expected records\*.jsonl in .* but got none; name a"):
        parity.load(tmp_path / "none")
