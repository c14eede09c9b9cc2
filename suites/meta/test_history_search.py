"""What a night keeps of its cases, on records made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.case import Case
from parity.history.night import Failure, Measure, Missing, Night, Passed, Row, Total
from parity.history.search import Search, rows, search
from parity.profiles import PROFILES
from parity.record import Finding, Record
from parity.spec import Input, OpSpec, Output

SMALL, LARGE, FRESH = (
    Case("op", "plain", "float32", {"tokens": tokens}, seed=tokens) for tokens in (1, 9, 3)
)
WRONG = Finding("values", "y", "wrong", "bits", "row 0", sentence="Expected 1.")
KEY, GONE = ("op", "values | y | wrong"), ("op", "values | z | wrong")


SPEC = OpSpec("op", "a:f", "a:f", (Input("x", "rows"),), (Output("y"),), {})
PLAIN = {"x": "contiguous", "y.grad": "contiguous", "values": "normal"}


def failing(*cases: Case) -> Night:
    """A night whose one failure shows first in these cases, each in a family of its own."""
    kept = tuple(
        Failure("op", f"family {n}", "", "", "", case.id, case.to_json(), 1)
        for n, case in enumerate(cases)
    )
    return Night("n", "one", 1, "", "gpu", "", "c", "", kept)


def test_the_simplest_case_of_every_failure_is_remembered(tmp_path: Path) -> None:
    small, large = (replace(case, variants=PLAIN) for case in (SMALL, LARGE))
    nights = [failing(large, large), failing(small), failing(large)]
    found = search(tmp_path, [SPEC], PROFILES["dev"], nights, "one/1")
    assert found.remembered == {("op", "family 0"): small, ("op", "family 1"): large}
    assert found.lost == []
    assert found.cases[:2] == [small, large]  # what failed before comes first
    assert [*found.fixed] == [*found.fresh] == ["op"]


def test_a_remembered_case_that_cannot_run_any_more_is_told(tmp_path: Path) -> None:
    illegal = replace(SMALL, dtype="no such type", variants=PLAIN)
    other = replace(SMALL, op="gone")
    found = search(tmp_path, [SPEC], PROFILES["dev"], [failing(illegal, other)], "one/1")
    assert found.remembered == {}
    assert [(missing.op, missing.count) for missing in found.lost] == [("op", 1), ("gone", 1)]
    assert "no such type" in found.lost[0].reason
    assert found.lost[1].reason.endswith("No contract has this name any more.")


def record(case: Case, status: str = "passed", *findings: Finding) -> Record:
    ran = status in ("passed", "failed")
    return Record(case.id, "op", "main", status, findings, ("values",) if ran else (), reason="r")


def kept(*records: Record, **seconds: float) -> list[Row]:
    search = Search({"op": [SMALL, LARGE]}, {"op": [FRESH]}, {GONE: FRESH}, [])
    by_id = {item.case_id: item for item in records}
    times = {case.id: seconds[name] for name, case in (("small", SMALL), ("large", LARGE))
             if name in seconds}  # fmt: skip
    return list(rows(search, by_id, times))


def test_a_night_without_failures() -> None:
    shares = {"y": 0.5, "x.grad": float("inf")}
    small = replace(record(SMALL), headroom=shares, cost={"forward launches": 1})
    large = replace(
        record(LARGE),
        headroom={"y": 0.25},
        cost={"forward launches": 2},
        traffic={"y": {"loaded": 8, "stored": 4}, "x": {"loaded": 1, "stored": 0}},
    )
    total, *rest = kept(small, large, record(FRESH), small=1.0, large=3.0)
    assert isinstance(total, Total)
    assert total == Total("op", 2, 2, 0, total.plan)
    assert rest == [
        Measure("op", "headroom", "y in float32", 0.375),
        Measure("op", "cost", "forward launches", 1.5),
        Measure("op", "cost", "bytes moved", 13),
        Measure("op", "time", "seconds of a case", 2.0),
        Passed(*GONE),
    ]


def test_a_failure_is_kept_with_its_simplest_case_and_its_largest_size_among_the_fixed() -> None:
    far = replace(WRONG, band="far off")
    found = kept(
        record(SMALL, "failed", WRONG),
        record(LARGE, "failed", replace(WRONG, band="up to 4 bounds")),
        record(FRESH, "failed", far),
    )
    (failure,) = [row for row in found if isinstance(row, Failure)]
    assert (failure.op, failure.family) == KEY
    assert failure.band == "up to 4 bounds"
    assert (failure.case_id, failure.cases) == (SMALL.id, 2)
    assert failure.sentence == "Expected 1."
    assert Case.from_dict(json.loads(failure.case)) == SMALL


def test_what_gave_no_answer_is_counted_by_reason() -> None:
    found = kept(record(SMALL, "infrastructure"))
    assert [row for row in found if isinstance(row, Missing)] == [
        Missing("op", "The night ended before its turn.", 2),
        Missing("op", "infrastructure: r", 1),
    ]
    assert not any(isinstance(row, Passed) for row in found)


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    small, large = (record(case, "infrastructure") for case in (SMALL, LARGE))
    found = kept(replace(small, reason="No width of 3."), replace(large, reason="No width of 12."))
    assert [row for row in found if isinstance(row, Missing)] == [
        Missing("op", "The night ended before its turn.", 1),
        Missing("op", "infrastructure: No width of 3.", 2),
    ]


@pytest.mark.parametrize("status", ["crashed", "timeout"])
def test_a_process_that_was_lost_is_a_failure(status: str) -> None:
    found = kept(record(SMALL, status), record(LARGE), record(FRESH))
    (failure,) = [row for row in found if isinstance(row, Failure)]
    assert failure.family == f"runs | process | {status}"
