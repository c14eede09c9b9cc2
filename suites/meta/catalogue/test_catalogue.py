"""Every planted bug of the catalogue is found as its kind, and its honest twin passes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import pytest

from parity.generate import plan
from parity.judging import judge
from parity.runner import device, run_case
from parity.verdict import Verdict
from suites.meta.catalogue import backward, tables
from suites.meta.catalogue.bug import BUGS
from suites.meta.catalogue.entries import ENTRIES
from suites.meta.catalogue.page import FILE, page
from suites.meta.false_passes.test_page import problem
from suites.meta.test_imports import ROOT


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found_and_its_honest_twin_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS[name]
    if bug.check == "hazard" and device().type != "cpu":
        pytest.skip("NOT_RUN: only the CPU tier sees every access")
    monkeypatch.setattr(backward, "_RUN", count())
    base = run_case(replace(bug.spec, candidate=bug.twin), bug.case, "base")
    head = run_case(replace(bug.spec, candidate=bug.candidate), bug.case)
    assert (base.status, base.findings) == ("passed", ())
    assert base.hazards == ()
    if bug.check:
        assert bug.check in (*base.checks, "hazard")
        found = [(finding.check, finding.tensor) for finding in (*head.findings, *head.hazards)]
        assert (bug.check, bug.tensor) in found
    verdicts = judge({bug.case.id: bug.spec.name}, {base.case_id: base}, {head.case_id: head})
    said = {item.verdict for item in verdicts}
    beside = {Verdict.HAZARD, Verdict.CHANGED_WITHIN_BOUND}
    assert said - beside == {bug.verdict}
    assert (Verdict.HAZARD in said) or bug.check != "hazard"


def test_a_guard_that_is_known_to_be_missing_can_be_asked_for_in_some_cases() -> None:
    bug = BUGS["reads_past_a_narrow_table"]
    spec = replace(bug.spec, candidate=bug.candidate, refuses_in=4)
    failed = [run_case(spec, replace(bug.case, seed=seed)).status == "failed" for seed in range(8)]
    assert failed == [True, False, False, False] * 2


def test_a_table_with_a_row_for_every_batch_entry_passes_every_planned_case() -> None:
    for case in plan(tables.OWN_ROWS, 0, 0):
        assert run_case(tables.OWN_ROWS, case).findings == ()


def test_every_report_is_shown_or_says_why_not() -> None:
    shown = [bug for entry in ENTRIES for bug in entry.bugs]
    assert set(shown) == set(BUGS)
    assert [entry.id for entry in ENTRIES] == sorted({entry.id for entry in ENTRIES})
    assert all(entry.bugs or entry.tests or entry.why for entry in ENTRIES)
    tests = [test.partition("::")[::2] for entry in ENTRIES for test in entry.tests]
    assert [text for test in tests if (text := problem(*test, ""))] == []


def test_the_ordinary_search_was_made_for_every_bug() -> None:
    """After a change: python -m suites.meta.catalogue.search."""
    search = json.loads(FILE.read_text(encoding="utf-8"))
    assert list(search) == sorted(BUGS)
    assert all(0 < each["case"] <= each["planned"] for each in search.values())


def test_the_page_is_the_table() -> None:
    """After a change: python -m suites.meta.catalogue.page > docs/catalogue.md."""
    assert (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8") == page()
