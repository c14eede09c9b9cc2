"""The classification of triage over generated pairs of result sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.triage.cause import EXIT_CODES, Cause, Row, exit_code
from parity.triage.classify import classify
from parity.triage.results import Failure, Outcome, Results, key, merge, node_id
from parity.verdict import Exit

FAILURES = st.builds(
    Failure,
    kind=st.sampled_from(("ValueError: rows", "ValueError: columns", "KeyError: rows")),
    place=st.sampled_from(("", "rope.py:check", "rope.py:go")),
)
IDS = [f"tests/test_{file}.py::test_{name}" for file in "ab" for name in ("x", "y[0]", "y[1]")]


def ran(name: str) -> st.SearchStrategy[Outcome]:
    failures = st.lists(FAILURES, min_size=1, max_size=2, unique_by=lambda f: f.signature)
    failed = failures.map(lambda found: Outcome(name, "failed", tuple(found)))
    return st.just(Outcome(name, "passed")) | failed


def any_outcome(name: str) -> st.SearchStrategy[Outcome | None]:
    others = st.sampled_from((None, Outcome(name, "skipped"), Outcome(name, "not_run")))
    return others | ran(name)


def arm(of: st.SearchStrategy[list[Outcome | None]]) -> st.SearchStrategy[Results]:
    return of.map(lambda outcomes: merge(outcome for outcome in outcomes if outcome))


RAN = arm(st.tuples(*map(ran, IDS)).map(list))
ANY = arm(st.tuples(*map(any_outcome, IDS)).map(list))


def told(rows: list[Row], verdict: Cause) -> set[tuple[str, str]]:
    return {(row.id, row.signature) for row in rows if row.verdict == verdict}


@given(RAN, RAN)
def test_swapping_the_arms_swaps_regression_and_fixed(base: Results, head: Results) -> None:
    there, back = classify(base, head), classify(head, base)
    assert told(there, Cause.REGRESSION) == told(back, Cause.FIXED)
    assert told(there, Cause.FIXED) == told(back, Cause.REGRESSION)
    assert told(there, Cause.PRE_EXISTING) == told(back, Cause.PRE_EXISTING)


@given(ANY, ANY)
def test_no_failure_of_head_is_dropped(base: Results, head: Results) -> None:
    failures = {(o.id, f.signature) for o in head.values() for f in o.failures}
    rows = classify(base, head)
    gone = {Cause.FIXED, Cause.REMOVED}
    assert failures == {
        (row.id, row.signature) for row in rows if row.signature and row.verdict not in gone
    }


@given(ANY, ANY)
def test_what_passed_on_base_is_never_excused(base: Results, head: Results) -> None:
    rows = classify(base, head)
    for name, outcome in head.items():
        if outcome.status == "failed" and name in base and base[name].status == "passed":
            expected = {(outcome.id, failure.signature) for failure in outcome.failures}
            assert expected <= told(rows, Cause.REGRESSION)


@given(ANY, ANY)
def test_an_excuse_names_a_base_test_that_fails_alike(base: Results, head: Results) -> None:
    for row in classify(base, head):
        if row.verdict in (Cause.PRE_EXISTING, Cause.NEW_TEST_BASE_CAUSE):
            shown = base[key(row.evidence)].failures
            assert row.signature in {failure.signature for failure in shown}


@given(ANY)
def test_equal_arms_show_nothing_new(arm: Results) -> None:
    found = {row.verdict for row in classify(arm, arm)}
    assert found <= {Cause.PRE_EXISTING, Cause.NOT_RUN, Cause.ZERO_TESTS}


@given(ANY, ANY)
def test_exit_0_says_that_all_that_base_passed_still_passes(base: Results, head: Results) -> None:
    if exit_code(classify(base, head)) == Exit.OK:
        siblings = {name.partition("[")[0] for name in head}
        for name, outcome in base.items():
            if outcome.status == "passed" and name in head:
                assert head[name].status == "passed"
            elif outcome.status == "passed":
                assert name.partition("[")[0] in siblings


def fails(name: str, kind: str = "ValueError: rows", phase: str = "call", **more: str) -> Outcome:
    return Outcome(name, "failed", (Failure(kind, phase=phase, **more),))


def passes(name: str) -> Outcome:
    return Outcome(name, "passed")


def verdicts(base: list[Outcome], head: list[Outcome], *cross: Outcome) -> dict[str, Cause]:
    return {r.id: r.verdict for r in classify(merge(base), merge(head), merge(cross))}


NEW, KNOWN, GOOD = "tests/test_n.py::test_new", "tests/test_a.py::test_b", "tests/test_a.py::test_g"


@pytest.mark.parametrize(
    ("cross", "verdict"),
    [
        ([], Cause.NEW_TEST_BASE_CAUSE),
        ([passes(NEW)], Cause.REGRESSION),
        ([fails(NEW)], Cause.NEW_TEST_BASE_CAUSE),
        ([fails(NEW, "ImportError: no such name")], Cause.NEW_TEST_BASE_CAUSE),
    ],
)
def test_a_run_on_bases_code_outranks_likeness(cross: list[Outcome], verdict: Cause) -> None:
    base = [fails(KNOWN), passes(GOOD)]
    assert verdicts(base, [*base, fails(NEW)], *cross)[NEW] == verdict


@pytest.mark.parametrize(
    ("on_base", "on_head", "verdict"),
    [
        (("rope.py:go", "got 6"), ("rope.py:go", "got 6"), Cause.NEW_TEST_BASE_CAUSE),
        # The change moves what the test sees: it may be what the test asks for, not done well.
        (("in test_new", "got 6"), ("in test_new", "got 7"), Cause.REGRESSION),
        (("rope.py:go", "got 6"), ("rope.py:other", "got 6"), Cause.REGRESSION),
        (("", "no fixture"), ("", "no fixture"), Cause.REGRESSION),
    ],
)
def test_a_run_on_bases_code_is_evidence_if_it_fails_for_the_same_values(
    on_base: tuple[str, str], on_head: tuple[str, str], verdict: Cause
) -> None:
    cross, new = (fails(NEW, place=place, exact=said) for place, said in (on_base, on_head))
    (row,) = classify(merge([passes(GOOD)]), merge([passes(GOOD), new]), merge([cross]))
    assert row.verdict == verdict
    assert (NEW in row.evidence) == (verdict == Cause.NEW_TEST_BASE_CAUSE)


def collect(name: str, kind: str = "ImportError: no such name") -> Outcome:
    return fails(name, kind, "collect")


def test_collection_errors() -> None:
    other = "tests/test_n.py"
    good, bad = [passes(KNOWN), passes(GOOD)], [collect("tests/test_a.py"), passes(NEW)]
    lost = {KNOWN: Cause.NOT_RUN, GOOD: Cause.NOT_RUN}
    assert verdicts([*good, passes(NEW)], bad) == {"tests/test_a.py": Cause.COLLECTION_ERROR} | lost
    assert verdicts(bad, [*good, passes(NEW)]) == {"tests/test_a.py": Cause.FIXED}
    assert verdicts(bad, bad) == {"tests/test_a.py": Cause.PRE_EXISTING}
    assert verdicts([*good, collect("tests/test_c.py")], [*good, collect(other)]) == {
        "tests/test_c.py": Cause.REMOVED,
        other: Cause.NEW_TEST_BASE_CAUSE,
    }
    # The file could be imported on base, so that another broken file there is no excuse.
    known = collect("tests/test_c.py")
    assert (
        verdicts([*good, known], [collect("tests/test_a.py"), known])["tests/test_a.py"]
        == Cause.COLLECTION_ERROR
    )
    # Base never got as far as this test.
    assert verdicts(bad, [fails(KNOWN), passes(NEW)])[KNOWN] == Cause.INCONCLUSIVE


def test_a_session_that_broke_on_one_side_is_no_verdict_on_the_change() -> None:
    good = [passes(KNOWN), passes(GOOD)]
    lost = fails("(session)", "the process died outside any test", "session")
    assert verdicts(good, [passes(KNOWN), lost]) == {
        "(session)": Cause.INFRASTRUCTURE,
        GOOD: Cause.NOT_RUN,
    }
    assert verdicts([*good, lost], good) == {"(session)": Cause.INFRASTRUCTURE}
    assert verdicts([*good, lost], [*good, lost]) == {"(session)": Cause.PRE_EXISTING}


def test_a_failure_that_another_one_hid_on_base() -> None:
    base = [fails(KNOWN, "KeyError: x"), fails(GOOD)]
    rows = classify(merge(base), merge([fails(KNOWN), fails(GOOD)]))
    assert told(rows, Cause.PRE_EXISTING_CHANGED) == {(KNOWN, "ValueError: rows")}
    assert not told(rows, Cause.REGRESSION)


CODES = {
    Cause.REGRESSION: 1,
    Cause.COLLECTION_ERROR: 1,
    Cause.INFRASTRUCTURE: 10,
    Cause.INCONCLUSIVE: 10,
    Cause.NOT_RUN: 10,
    Cause.SKIPPED_IN_HEAD: 10,
    Cause.ZERO_TESTS: 5,
    Cause.NEW_TEST_BASE_CAUSE: 0,
    Cause.PRE_EXISTING_CHANGED: 0,
    Cause.PRE_EXISTING: 0,
    Cause.RENAMED_PARAMETERS: 0,
    Cause.REMOVED: 0,
    Cause.SKIPPED_IN_BASE: 0,
    Cause.FIXED: 0,
}


@given(st.sets(st.sampled_from(Cause)))
def test_the_exit_code_is_that_of_the_worst_verdict(found: set[Cause]) -> None:
    codes = {CODES[verdict] for verdict in found}
    worst = next((code for code in (1, 5, 10) if code in codes), 0)
    assert exit_code(Row("t", verdict, "", "") for verdict in found) == worst


def test_every_verdict_has_its_exit_code() -> None:
    assert CODES == EXIT_CODES


@pytest.mark.parametrize(
    ("classname", "name", "file", "expected"),
    [
        ("tests.unit.test_a", "test_x", "", "tests/unit/test_a.py::test_x"),
        (
            "tests.unit.test_a.TestA.TestB",
            "test_x[1]",
            "",
            "tests/unit/test_a.py::TestA::TestB::test_x[1]",
        ),
        ("tests/unit/test_a.py", "test_x", "", "tests/unit/test_a.py::test_x"),
        ("suites.check.TestA", "test_x", "suites/check.py", "suites/check.py::TestA::test_x"),
        ("", "tests.unit.test_a", "", "tests.unit.test_a"),
        ("", "test_x", "", "test_x"),
        ("org.rope.CheckTable", "rows", "", "org.rope.CheckTable::rows"),
    ],
)
def test_node_ids(classname: str, name: str, file: str, expected: str) -> None:
    assert node_id(classname, name, file) == expected
    assert key(expected) == ".".join(filter(None, (key(classname), name)))
