"""Files that we wrote and that something damaged since: a sentence names them, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity import cli
from parity.codegen import measure
from parity.gate import baseline as saved
from parity.mutation.baseline import baseline
from parity.mutation.hunt import Lab
from parity.mutation.outcomes import Journal, Outcome
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
