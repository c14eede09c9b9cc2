"""The classification of triage over generated pairs of result sets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.triage.cause import EXIT_CODES, Cause, Row, counts, exit_code
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


def skips(name: str) -> Outcome:
    return Outcome(name, "skipped")


def lost(name: str) -> Outcome:
    return Outcome(name, "not_run")


X, X0, X1, Y = (f"t/test_{name}" for name in ("a.py::x", "a.py::z[0]", "a.py::z[1]", "b.py::y"))
ROWS, KEYS = Failure("ValueError: rows", "r.py:go"), Failure("KeyError: k", "r.py:go")
MOVED = Failure("ValueError: rows", "r.py:other")
A, B = "t/test_a.py", "t/test_b.py"


def failing(name: str, *failures: Failure) -> Outcome:
    return Outcome(name, "failed", failures)


# Each row of two arms: verdict, test, base > head, signature, evidence, reason.
TABLE = [
    ([failing(X, ROWS)], [failing(X, ROWS)], [
        f"PRE_EXISTING {X} failed>failed ValueError: rows | r.py:go @{X}; fails alike on base",
    ]),
    ([failing(X, ROWS)], [failing(X, MOVED)], [
        f"PRE_EXISTING_CHANGED {X} failed>failed ValueError: rows | r.py:other @{X}; "
        "fails with the same message on base, in another place",
    ]),
    ([failing(X, ROWS)], [failing(X, KEYS)], [
        f"REGRESSION {X} failed>failed KeyError: k | r.py:go @; "
        "fails on base as well, but not like this",
        f"FIXED {X} failed>failed ValueError: rows | r.py:go @; "
        "this failure is gone, another has come",
    ]),
    ([failing(X, ROWS), failing(Y, KEYS)], [failing(X, KEYS), failing(Y, KEYS)], [
        f"PRE_EXISTING_CHANGED {X} failed>failed KeyError: k | r.py:go @{Y}; "
        "fails on base for another reason, which hid this one",
        f"PRE_EXISTING {Y} failed>failed KeyError: k | r.py:go @{Y}; fails alike on base",
        f"FIXED {X} failed>failed ValueError: rows | r.py:go @; "
        "this failure is gone, another has come",
    ]),
    # The same failure in another test of head: it has moved there, it is not gone.
    ([failing(X, ROWS, KEYS)], [failing(X, KEYS), failing(Y, ROWS)], [
        f"NEW_TEST_BASE_CAUSE {Y} absent>failed ValueError: rows | r.py:go @{X}; base fails alike",
        f"PRE_EXISTING {X} failed>failed KeyError: k | r.py:go @{X}; fails alike on base",
    ]),
    ([failing(X, ROWS, KEYS)], [passes(X)], [
        f"FIXED {X} failed>passed ValueError: rows | r.py:go @; passes now",
        f"FIXED {X} failed>passed KeyError: k | r.py:go @; passes now",
    ]),
    ([passes(X)], [failing(X, ROWS, KEYS)], [
        f"REGRESSION {X} passed>failed ValueError: rows | r.py:go @; passed on base",
        f"REGRESSION {X} passed>failed KeyError: k | r.py:go @; passed on base",
    ]),
    ([passes(X)], [failing(X, replace(ROWS, ranks=(1, 3)))], [
        f"REGRESSION {X} passed>failed ValueError: rows | r.py:go @rank 1, 3; passed on base",
    ]),
    ([skips(X)], [failing(X, ROWS)], [
        f"REGRESSION {X} skipped>failed ValueError: rows | r.py:go @; skipped on base",
    ]),
    ([], [failing(X, ROWS)], [
        f"REGRESSION {X} absent>failed ValueError: rows | r.py:go @; "
        "new, and base shows no such failure",
    ]),
    ([lost(X)], [failing(X, ROWS)], [
        f"INCONCLUSIVE {X} not_run>failed ValueError: rows | r.py:go @; "
        "base did not get as far as this test, so it cannot tell",
    ]),
    ([collect(A)], [failing(X, ROWS)], [
        f"INCONCLUSIVE {X} absent>failed ValueError: rows | r.py:go @; "
        "base did not get as far as this test, so it cannot tell",
        f"FIXED {A} failed>absent ImportError: no such name @; does not break now",
    ]),
    ([passes(X)], [lost(X)], [f"NOT_RUN {X} passed>not_run @; the session ended before this test"]),
    ([passes(X)], [skips(X)], [
        f"SKIPPED_IN_HEAD {X} passed>skipped @; ran on base and is skipped now",
    ]),
    ([failing(X, ROWS)], [skips(X)], [
        f"SKIPPED_IN_HEAD {X} failed>skipped @; ran on base and is skipped now",
    ]),
    ([skips(X)], [passes(X)], [
        f"SKIPPED_IN_BASE {X} skipped>passed @; passes now and was skipped on base",
    ]),
    ([skips(X)], [skips(X)], []),
    ([skips(X)], [], []),
    ([], [skips(X)], []),
    ([lost(X)], [passes(X)], []),
    ([passes(X)], [], [
        f"NOT_RUN {X} passed>absent @; passed on base; this change has no such test",
    ]),
    ([failing(X, ROWS)], [], [
        f"REMOVED {X} failed>absent ValueError: rows | r.py:go @; "
        "fails on base; this change has no such test, which is no fix",
    ]),
    ([passes(X0)], [passes(X1)], [f"RENAMED_PARAMETERS {X0} passed>absent @; now {X1}"]),
    ([failing(X0, ROWS)], [passes(X1), passes(f"{X1}b")], [
        f"RENAMED_PARAMETERS {X0} failed>absent @; now {X1} and others",
    ]),
    ([failing(X0, ROWS)], [failing(X1, ROWS)], [
        f"NEW_TEST_BASE_CAUSE {X1} absent>failed ValueError: rows | r.py:go @{X0}; "
        "base fails alike",
        f"RENAMED_PARAMETERS {X0} failed>absent @; now {X1}",
    ]),
    # Beside a test that was renamed, only a test of its function is evidence.
    ([passes(X0), failing(Y, ROWS)], [failing(X1, ROWS), failing(Y, ROWS)], [
        f"REGRESSION {X1} absent>failed ValueError: rows | r.py:go @; "
        "new, and base shows no such failure",
        f"PRE_EXISTING {Y} failed>failed ValueError: rows | r.py:go @{Y}; fails alike on base",
        f"RENAMED_PARAMETERS {X0} passed>absent @; now {X1}",
    ]),
    ([passes(X)], [collect(A)], [
        f"COLLECTION_ERROR {A} absent>failed ImportError: no such name @; passed on base",
        f"NOT_RUN {X} passed>absent @; its file was not collected, or the session broke",
    ]),
    ([collect(B)], [], [
        f"REMOVED {B} failed>absent ImportError: no such name @; "
        "no test of this file ran, which is no fix",
    ]),
    ([], [], []),
]  # fmt: skip


def line(row: Row) -> str:
    signature = f" {row.signature}" if row.signature else ""
    arms = f"{row.base}>{row.head}"
    return f"{row.verdict} {row.id} {arms}{signature} @{row.evidence}; {row.reason}"


@pytest.mark.parametrize(("base", "head", "expected"), TABLE)
def test_every_row(base: list[Outcome], head: list[Outcome], expected: list[str]) -> None:
    """Beside a test that passes in both arms, so that some test ran."""
    rows = classify(merge([passes(GOOD), *base]), merge([passes(GOOD), *head]))
    assert [line(row) for row in rows] == expected


@pytest.mark.parametrize(
    ("cross", "expected"),
    [
        (passes(X), f"REGRESSION {X} {{}} @; new, and passes on base's code"),
        (failing(X, KEYS), f"REGRESSION {X} {{}} @; new, and base shows no such failure"),
        (
            failing(X, ROWS),
            f"NEW_TEST_BASE_CAUSE {X} {{}} @{X} (this change's test on base's code); "
            "new, and fails alike on base's code",
        ),
    ],
)
def test_every_row_of_a_test_that_also_ran_on_bases_code(cross: Outcome, expected: str) -> None:
    head = merge([passes(GOOD), failing(X, ROWS)])
    (row,) = classify(merge([passes(GOOD)]), head, merge([cross]))
    assert line(row) == expected.format("absent>failed ValueError: rows | r.py:go")


def test_an_arm_without_a_test_that_ran() -> None:
    """A file that cannot be imported, and a session that broke, are no tests."""
    empty = merge([collect(A), skips(Y)])
    assert [line(row) for row in classify(empty, empty)] == [
        "ZERO_TESTS (base) > @; no test ran on base",
        "ZERO_TESTS (head) > @; no test ran on head",
        f"PRE_EXISTING {A} failed>failed ImportError: no such name @{A}; fails alike on base",
    ]
    (first, second) = classify(merge([]), merge([failing(X, ROWS)]))
    assert line(first).startswith(f"INCONCLUSIVE {X} absent>failed")
    assert line(second) == "ZERO_TESTS (base) > @; no test ran on base"


def test_counts_tell_the_four_that_a_reader_looks_for_even_at_zero() -> None:
    rows = [Row("t", Cause.NOT_RUN, "", "")] * 2 + [Row("t", Cause.FIXED, "", "")]
    zero = {"PRE_EXISTING": 0, "NEW_TEST_BASE_CAUSE": 0, "REGRESSION": 0}
    assert counts(rows) == {"NOT_RUN": 2, "FIXED": 1} | zero


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


def test_the_exit_code_is_that_of_the_worst_verdict() -> None:
    for found in ((), *itertools.combinations(Cause, 2)):
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
        ("unit/test_b", "test_x", "", "unit/test_b.py::test_x"),
        ("test_b.py", "test_x", "", "test_b.py::test_x"),
    ],
)
def test_node_ids(classname: str, name: str, file: str, expected: str) -> None:
    assert node_id(classname, name, file) == expected
    assert key(expected) == ".".join(filter(None, (key(classname), name)))


def test_a_class_of_another_file_is_not_named_twice() -> None:
    for other in ("other.TestA", "a_module_elsewhere.TestA"):
        assert node_id(other, "test_x", "suites/check.py") == "suites/check.py::test_x"


def test_parameters_keep_their_separators() -> None:
    assert key("tests/a.py::test_x[a::b/c]") == "tests.a.test_x[a::b/c]"
    assert node_id("tests.test_a", "test_x") == "tests/test_a.py::test_x"


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("lost", "Expected a status among .* but got 'lost'."),
        ("failed", "got status 'failed' with 0 failures."),
    ],
)
def test_an_outcome_that_contradicts_itself_is_refused(status: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Outcome(X, status)


def test_what_ranks_say_of_one_test_comes_together() -> None:
    first = failing(X, replace(ROWS, ranks=(3,)), replace(KEYS, ranks=(3,)))
    told = [passes(X), first, failing(X, replace(ROWS, ranks=(1, 3))), skips(Y), passes(Y)]
    assert merge(told) == {
        key(X): failing(X, replace(ROWS, ranks=(1, 3)), replace(KEYS, ranks=(3,))),
        key(Y): passes(Y),
    }
    assert merge([passes(X), lost(X)]) == {key(X): lost(X)}
