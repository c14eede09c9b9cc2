"""The cases of both arms run, each under the contract that allows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parity.corpus import keep
from parity.gate.cross import crossed
from parity.generate import plan
from parity.spec import OpSpec
from suites.meta.double import SPEC

NARROW = replace(SPEC, axes={"dim": range(1, 5)})


def ids(jobs: list[tuple[OpSpec, object]]) -> list[str]:
    return [case.id for _, case in jobs]  # type: ignore[attr-defined]


def test_equal_contracts_give_one_plan(tmp_path: Path) -> None:
    jobs = crossed([SPEC], [SPEC], (tmp_path, tmp_path), 10, 0)
    assert ids(jobs) == [case.id for case in plan(SPEC, 10, 0)]


def test_what_base_allowed_is_judged_by_base(tmp_path: Path) -> None:
    """And what both allow by head, as everything that head plans."""
    jobs = crossed([SPEC], [NARROW], (tmp_path, tmp_path), 10, 0)
    planned = [{case.id for case in plan(spec, 10, 0)} for spec in (SPEC, NARROW)]
    assert set(ids(jobs)) == planned[0] | planned[1]
    for spec, case in jobs:
        assert spec is (SPEC if case.axes["dim"] > 4 else NARROW)
    assert {spec.axes["dim"] for spec, _ in jobs} == {SPEC.axes["dim"], NARROW.axes["dim"]}


def test_an_op_that_head_dropped_keeps_its_cases(tmp_path: Path) -> None:
    other = replace(SPEC, name="other")
    jobs = crossed([SPEC, other], [SPEC], (tmp_path, tmp_path), 10, 0)
    assert {spec.name for spec, _ in jobs} == {"double", "other"}


def test_kept_cases_of_both_arms_run_first_and_once(tmp_path: Path) -> None:
    base, head = tmp_path / "base", tmp_path / "head"
    kept = [case for case in plan(SPEC, 40, seed=9) if case not in plan(SPEC, 10, 0)][:3]
    keep(base, kept[0])
    keep(base, kept[1])
    keep(head, kept[1])
    keep(head, kept[2])
    (base / "suites" / "corpus" / "double" / "torn.json").write_text("{")
    jobs = crossed([SPEC], [SPEC], (base, head), 10, 0)
    assert set(ids(jobs)[:3]) == {case.id for case in kept}
    assert len(ids(jobs)) == len(set(ids(jobs))) == 3 + len(plan(SPEC, 10, 0))


def test_a_kept_case_that_only_base_allows_runs_too(tmp_path: Path) -> None:
    wide = next(case for case in plan(SPEC, 40, seed=9) if case.axes["dim"] > 4)
    keep(tmp_path / "base", wide)
    jobs = crossed([SPEC], [NARROW], (tmp_path / "base", tmp_path / "head"), 1, 0)
    assert (SPEC, wide) in jobs


def test_a_kept_case_that_neither_allows_cannot_run(tmp_path: Path) -> None:
    wide = next(case for case in plan(SPEC, 40, seed=9) if case.axes["dim"] > 4)
    keep(tmp_path / "base", wide)
    jobs = crossed([NARROW], [NARROW], (tmp_path / "base", tmp_path / "head"), 1, 0)
    assert wide.id not in ids(jobs)
