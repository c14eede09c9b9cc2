"""Known issues excuse what they name, until they expire, and are never silent."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from parity.case import Case
from parity.gate.comparison import Comparison
from parity.gate.known import Known, KnownIssue, load
from parity.gate.report import conclude
from parity.record import Record
from parity.runs import Run
from parity.spec import Input, OpSpec, Output
from parity.verdict import Exit, Judgement, Verdict, exit_code

TODAY = datetime.date(2026, 6, 1)
SIGNATURE = "values | y | wrong | far off | row 0"
ISSUE = KnownIssue("op", SIGNATURE, "reported upstream", "https://example.org/1", TODAY)
FAILURE = Judgement(Verdict.REGRESSION, "op", "case", SIGNATURE, "values | y | wrong", "Wrong.")
PASS = Judgement(Verdict.IDENTICAL, "op", "other")


def code(issue: KnownIssue, failure: Judgement = FAILURE) -> Exit:
    found = Known((issue,)).applied([failure, PASS], TODAY)
    assert [item.verdict for item in found] == [failure.verdict, PASS.verdict]
    return exit_code(item.counted for item in found)


def state(issue: KnownIssue) -> str:
    (entry,) = Known((issue,)).states([FAILURE, PASS], TODAY)
    return str(entry["state"])


def test_a_known_failure_keeps_its_verdict_and_does_not_count() -> None:
    (known, other) = Known((ISSUE,)).applied([FAILURE, PASS], TODAY)
    assert (known.verdict, known.known) == (
        Verdict.REGRESSION,
        "reported upstream (https://example.org/1)",
    )
    assert other.known == ""
    assert code(ISSUE) == Exit.OK
    assert state(ISSUE) == "matched"
    assert code(replace(ISSUE, signature=FAILURE.family)) == Exit.OK


@pytest.mark.parametrize(
    "change",
    [
        {"signature": SIGNATURE.replace("far off", "up to 4 bounds")},
        {"signature": "values | y"},
        {"op": "another"},
    ],
)
def test_another_failure_counts_and_leaves_the_entry_stale(change: dict[str, str]) -> None:
    assert code(replace(ISSUE, **change)) == Exit.REGRESSION
    assert state(replace(ISSUE, **change)) == "stale"


def test_an_expired_entry_counts_as_none() -> None:
    late = replace(ISSUE, expires=TODAY - datetime.timedelta(days=1))
    assert code(late) == Exit.REGRESSION
    assert state(late) == "expired"


def test_a_doubt_can_be_known_too_and_nothing_passing_is_no_pass() -> None:
    doubt = replace(FAILURE, verdict=Verdict.NONDETERMINISTIC)
    assert code(ISSUE, doubt) == Exit.OK
    (known,) = Known((ISSUE,)).applied([FAILURE], TODAY)
    assert exit_code([known.counted]) == Exit.INCONCLUSIVE


def test_an_entry_that_the_change_brings_is_marked() -> None:
    other = replace(ISSUE, op="another")
    known = Known.compared([other], [ISSUE, other])
    assert [entry["new"] for entry in known.states([FAILURE], TODAY)] == [True, False]


def test_an_entry_is_told_in_full() -> None:
    assert Known((ISSUE,)).states([FAILURE], TODAY) == [
        {
            "op": "op", "signature": SIGNATURE, "reason": "reported upstream",
            "address": "https://example.org/1", "expires": "2026-06-01", "state": "matched",
            "new": False,
        }
    ]  # fmt: skip


GOOD = '[[issue]]\nop = "op"\nsignature = "s"\nreason = "r"\naddress = "a"\nexpires = 2026-06-01\n'


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text('[tool.parity]\nknown_issues = "known.toml"\n')
    (folder / "known.toml").write_text(text)
    return folder


def test_a_file(tmp_path: Path) -> None:
    assert load(tmp_path) == []
    assert load(project(tmp_path, "")) == []
    assert load(project(tmp_path, GOOD * 2)) == [KnownIssue("op", "s", "r", "a", TODAY)] * 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD.replace("2026-06-01", '"2026-06-01"'), "expires"),
        (GOOD.replace('reason = "r"\n', ""), "reason"),
        (GOOD.replace('"r"', '""'), "reason"),
        (GOOD.replace("op", "opp"), "op, opp"),
        ("[[issue", "Expected known issues as TOML"),
        ("issue = 3", "tables in .*known.toml but got issue = 3"),
        ("issue = ['x']", "but got issue = .'x'"),
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        load(project(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_the_sentence_says_what_an_entry_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(texts\)") as caught:
        load(project(tmp_path, GOOD.replace("op", "opp")))
    assert str(caught.value) == (
        "Expected op, signature, reason, address (texts) and expires (a date) in every [[issue]] "
        f"of {tmp_path / 'known.toml'} but got op, opp missing, wrong or unknown."
    )


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    project(tmp_path, "")
    (tmp_path / "known.toml").unlink()
    with pytest.raises(ValueError, match="No such file") as caught:
        load(tmp_path)
    assert str(caught.value).endswith(
        "; write [[issue]] tables, or take known_issues out of pyproject.toml."
    )


@pytest.mark.parametrize(("signature", "code"), [("code | k | spills", 0), ("code | k | width", 1)])
def test_generated_code_can_be_known_too(tmp_path: Path, signature: str, code: int) -> None:
    spec = OpSpec("op", "a:f", "a:f", (Input("x", "rows"),), (Output("y"),), {})
    case = Case("op", "plain", "float32", {"tokens": 1})
    known = Known((replace(ISSUE, signature=signature, expires=datetime.date.max),))
    comparison = Comparison(Run.create(tmp_path), {}, [(spec, case)], known)
    comparison.run.write("run", {"arms": {}, "cases": 1})
    for arm, records in comparison.records.items():
        passed = Record(case.id, "op", arm, "passed", checks=("values",), digests={"y": "d"})
        records[case.id] = passed
    item = {"op": "op", "verdict": "REGRESSION", "minimal_case": case.id}
    item |= dict.fromkeys(("signature", "family"), "code | k | spills")
    result = conclude(comparison, [item])
    assert result["exit_code"] == code
    (entry,) = result["known_issues"]
    assert entry["state"] == ("stale" if code else "matched")
