"""The classification of record pairs: total, symmetric, and neither too kind nor too harsh."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.judging import families, hidden, judge
from parity.record import STATUSES, Finding, Record
from parity.verdict import EXIT_CODES, Exit, Judgement, Verdict, exit_code

WRONG = Finding("values", "output", "mismatch", band="1e0", locus="last row", sentence="Wrong.")
MOVED = Finding("values", "output", "mismatch", band="1e3", locus="row 0", sentence="Wrong.")
GRADIENT = Finding("gradient", "t.grad", "mismatch", sentence="Gradient wrong.")
RAISED = Finding("runs", "backward", "AssertionError", frame="a.py:f", sentence="It raised.")


def record(case: str, *findings: Finding, status: str = "", digest: str = "d") -> Record:
    """A record of op "op"; passed or failed unless a status is given."""
    status = status or ("failed" if findings else "passed")
    ran = status in ("passed", "failed")
    raised = any(item.check == "runs" for item in findings)
    tensors = () if not ran else ("output",) if raised else ("output", "t.grad")
    return Record(
        case_id=case,
        op="op",
        arm="",
        status=status,
        findings=findings,
        checks=("values",) if ran else (),
        digests=dict.fromkeys(tensors, digest),
        headroom=dict.fromkeys(tensors, 0.5),
        reason="" if ran else f"because {status}",
    )


def verdicts(base: list[Record], head: list[Record]) -> list[Judgement]:
    cases = {item.case_id: item.op for item in (*base, *head)}
    return judge(
        cases, {item.case_id: item for item in base}, {item.case_id: item for item in head}
    )


def one(base: Record, head: Record) -> list[Verdict]:
    return [judgement.verdict for judgement in verdicts([base], [head])]


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (record("c"), record("c"), [Verdict.IDENTICAL]),
        (record("c"), record("c", digest="e"), [Verdict.CHANGED_WITHIN_BOUND]),
        (record("c"), record("c", WRONG), [Verdict.REGRESSION]),
        (record("c", WRONG), record("c"), [Verdict.FIXED]),
        (record("c", WRONG), record("c", WRONG), [Verdict.PRE_EXISTING]),
        (record("c", WRONG), record("c", MOVED), [Verdict.PRE_EXISTING_CHANGED] * 2),
        (record("c", WRONG), record("c", GRADIENT), [Verdict.FIXED, Verdict.REGRESSION]),
        (
            record("c", WRONG),
            record("c", WRONG, GRADIENT),
            [Verdict.PRE_EXISTING, Verdict.REGRESSION],
        ),
        (record("c", status="unsupported"), record("c"), [Verdict.NEW_CAPABILITY]),
        (record("c", status="unsupported"), record("c", WRONG), [Verdict.REGRESSION]),
        (record("c"), record("c", status="unsupported"), [Verdict.LOST_CAPABILITY]),
        (record("c", WRONG), record("c", status="unsupported"), [Verdict.LOST_CAPABILITY]),
        (
            record("c", status="unsupported"),
            record("c", status="unsupported"),
            [Verdict.UNSUPPORTED],
        ),
        (record("c"), record("c", status="crashed"), [Verdict.REGRESSION]),
        (record("c", status="timeout"), record("c"), [Verdict.FIXED]),
        (record("c", status="crashed"), record("c", status="crashed"), [Verdict.PRE_EXISTING]),
        (
            record("c", status="timeout"),
            record("c", status="crashed"),
            [Verdict.FIXED, Verdict.REGRESSION],
        ),
        (record("c"), record("c", status="infrastructure"), [Verdict.INFRASTRUCTURE]),
        (record("c", status="infrastructure"), record("c", WRONG), [Verdict.INFRASTRUCTURE]),
    ],
)
def test_pairs(base: Record, head: Record, expected: list[Verdict]) -> None:
    assert one(base, head) == expected


@pytest.mark.parametrize(
    ("base", "head"), list(itertools.product((*STATUSES, "missing"), repeat=2))
)
def test_every_pair_of_outcomes_has_a_verdict(base: str, head: str) -> None:
    def outcome(status: str) -> list[Record]:
        found = (WRONG,) if status == "failed" else ()
        return [] if status == "missing" else [record("c", *found, status=status)]

    found = judge(
        {"c": "op"},
        {item.case_id: item for item in outcome(base)},
        {item.case_id: item for item in outcome(head)},
    )
    assert found
    if "missing" in (base, head):
        assert [item.verdict for item in found] == [Verdict.NOT_RUN]
    elif "infrastructure" in (base, head):
        assert [item.verdict for item in found] == [Verdict.INFRASTRUCTURE]
    elif {base, head} == {"passed"}:
        assert [item.verdict for item in found] == [Verdict.IDENTICAL]
    else:
        assert Verdict.IDENTICAL not in {item.verdict for item in found}


def test_passed_without_digests_is_no_proof() -> None:
    empty = Record("c", "op", "", "passed", checks=("values",))
    assert one(empty, empty) == [Verdict.INCONCLUSIVE]


def test_headroom_of_the_tensors_that_changed() -> None:
    (item,) = verdicts(
        [record("c")], [replace(record("c"), digests={"output": "e", "t.grad": "d"})]
    )
    assert item.headroom == {"output": (0.5, 0.5)}
    assert "The bits of output differ" in item.sentence


def test_different_inputs_are_not_compared() -> None:
    base = Record("c", "op", "base", "passed", checks=("values",), inputs="a", digests={"o": "d"})
    head = Record("c", "op", "head", "passed", checks=("values",), inputs="b", digests={"o": "d"})
    assert one(base, head) == [Verdict.INCONCLUSIVE]


def test_a_failure_base_could_not_reach_is_excused_by_another_case() -> None:
    base = [record("hidden", RAISED), record("shown", GRADIENT)]
    head = [record("hidden", GRADIENT), record("shown", GRADIENT)]
    found = {(item.case_id, item.verdict, item.evidence) for item in verdicts(base, head)}
    assert found == {
        ("hidden", Verdict.FIXED, ""),
        ("hidden", Verdict.PRE_EXISTING, "shown"),
        ("shown", Verdict.PRE_EXISTING, ""),
    }


def test_a_failure_base_could_not_reach_and_shows_nowhere_is_a_regression() -> None:
    found = verdicts([record("c", RAISED)], [record("c", GRADIENT)])
    assert Counter(item.verdict for item in found) == {Verdict.FIXED: 1, Verdict.REGRESSION: 1}


EXTRA = Finding("relation:tiles", "output", "differs", sentence="Tiles differ.")


def test_a_check_that_waits_for_a_clean_run_is_hidden_by_any_failure() -> None:
    """Base fails otherwise, so it never came to the relation: a probe of a sibling decides."""
    base, head = record("c", WRONG), record("c", EXTRA)
    sibling = (record("s", EXTRA), record("s", EXTRA))
    clean = (record("s"), record("s", EXTRA))
    ops, pair = {"c": "op"}, ({"c": base}, {"c": head})
    for probes, expected in (
        ([sibling], {Verdict.FIXED, Verdict.PRE_EXISTING}),
        ([clean], {Verdict.FIXED, Verdict.REGRESSION}),
        ([], {Verdict.FIXED, Verdict.REGRESSION}),
    ):
        found = judge(ops, *pair, probes)
        assert {item.verdict for item in found} == expected
    (blamed,) = [item for item in judge(ops, *pair) if item.verdict == Verdict.REGRESSION]
    assert hidden(blamed, base, head)
    assert not hidden(blamed, replace(base, checks=("values", "relation:tiles")), head)


def test_probes_excuse_both_arms_alike() -> None:
    base, head = record("c", EXTRA), record("c", WRONG)
    sibling = (record("s", EXTRA), record("s", EXTRA))
    found = judge({"c": "op"}, {"c": base}, {"c": head}, [sibling])
    assert {item.verdict for item in found} == {Verdict.PRE_EXISTING, Verdict.REGRESSION}


def test_a_failure_of_an_output_base_got_right_is_not_excused() -> None:
    base = [record("c", RAISED), record("shown", WRONG)]
    head = [record("c", RAISED, WRONG), record("shown", WRONG)]
    assert ("c", Verdict.REGRESSION) in {
        (item.case_id, item.verdict) for item in verdicts(base, head)
    }


def test_a_new_case_that_fails_as_base_does_elsewhere() -> None:
    base = [record("new", status="unsupported"), record("old", WRONG)]
    head = [record("new", MOVED), record("old", WRONG)]
    new = next(item for item in verdicts(base, head) if item.case_id == "new")
    assert (new.verdict, new.evidence) == (Verdict.NEW_TEST_BASE_CAUSE, "old")


FINDINGS = st.builds(
    Finding,
    check=st.sampled_from(("values", "gradient", "runs")),
    tensor=st.sampled_from(("output", "t.grad")),
    error=st.sampled_from(("mismatch", "nan")),
    band=st.sampled_from(("", "1e3")),
)


@st.composite
def arms(draw: st.DrawFn) -> tuple[list[Record], list[Record]]:
    """Records of the same cases in two arms; every case ran in both."""
    ran = st.sampled_from(("passed", "failed", "crashed", "timeout"))
    pair: tuple[list[Record], list[Record]] = ([], [])
    for number in range(draw(st.integers(1, 4))):
        for records in pair:
            status = draw(ran)
            found = draw(st.lists(FINDINGS, min_size=1, max_size=3)) if status == "failed" else []
            digest = draw(st.sampled_from("de"))
            records.append(record(f"c{number}", *found, status=status, digest=digest))
    return pair


def signatures(found: list[Judgement], verdict: Verdict) -> set[tuple[str, str]]:
    return {(item.case_id, item.signature) for item in found if item.verdict == verdict}


@given(arms())
def test_swapping_the_arms_swaps_regression_and_fixed(
    pair: tuple[list[Record], list[Record]],
) -> None:
    base, head = pair
    there, back = verdicts(base, head), verdicts(head, base)
    assert signatures(there, Verdict.REGRESSION) == signatures(back, Verdict.FIXED)
    assert signatures(there, Verdict.FIXED) == signatures(back, Verdict.REGRESSION)
    for verdict in set(Verdict) - {Verdict.REGRESSION, Verdict.FIXED}:
        assert signatures(there, verdict) == signatures(back, verdict)


@given(arms())
def test_equal_arms_show_no_change(pair: tuple[list[Record], list[Record]]) -> None:
    found = {item.verdict for item in verdicts(pair[0], pair[0])}
    assert found <= {Verdict.IDENTICAL, Verdict.PRE_EXISTING}
    assert exit_code(found) == (Exit.OK if Verdict.IDENTICAL in found else Exit.INCONCLUSIVE)


@given(arms())
def test_no_head_failure_is_dropped(pair: tuple[list[Record], list[Record]]) -> None:
    judged = {item.family for item in verdicts(*pair)}
    assert {family for _, family in families(pair[1])} <= judged


def test_every_verdict_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(Verdict)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], Exit.NOTHING_COMPARED),
        ([Verdict.UNSUPPORTED], Exit.NOTHING_COMPARED),
        ([Verdict.UNSUPPORTED, Verdict.IDENTICAL], Exit.OK),
        ([Verdict.PRE_EXISTING, Verdict.UNSUPPORTED], Exit.INCONCLUSIVE),
        ([Verdict.PRE_EXISTING, Verdict.IDENTICAL], Exit.OK),
        ([Verdict.IDENTICAL, Verdict.NOT_RUN], Exit.INCONCLUSIVE),
        ([Verdict.NOT_RUN], Exit.INCONCLUSIVE),
        ([Verdict.REGRESSION, Verdict.NOT_RUN], Exit.REGRESSION),
        ([Verdict.LOST_CAPABILITY], Exit.REGRESSION),
        ([Verdict.FIXED, Verdict.PRE_EXISTING, Verdict.NEW_CAPABILITY], Exit.OK),
    ],
)
def test_exit_codes(found: list[Verdict], expected: Exit) -> None:
    assert exit_code(found) == expected


SMALL, LARGE = (replace(WRONG, band=band) for band in ("up to 4 bounds", "far off"))


def test_a_small_known_failure_does_not_excuse_a_large_one() -> None:
    """In the same case, and as evidence from another one; a shrunk failure is half a fix."""
    assert set(one(record("c", SMALL), record("c", LARGE))) == {
        Verdict.PRE_EXISTING_CHANGED,
        Verdict.REGRESSION,
    }
    assert Verdict.FIXED in one(record("c", LARGE), record("c", SMALL))
    new = [record("c", status="unsupported"), record("other", SMALL)]
    found = verdicts(new, [record("c", LARGE), record("other", SMALL)])
    assert found[0].verdict == Verdict.REGRESSION
    new[1] = record("other", LARGE)
    found = verdicts(new, [record("c", LARGE), record("other", LARGE)])
    assert found[0].verdict == Verdict.NEW_TEST_BASE_CAUSE


def test_a_kernel_judged_by_another_reference_is_not_compared() -> None:
    """A wrong kernel and a reference changed to match it would both keep the bound."""
    base, head = (replace(record("c", digest=d), expected=d) for d in ("d", "e"))
    assert one(base, head) == [Verdict.INCONCLUSIVE]
    assert one(base, replace(head, expected="d")) == [Verdict.CHANGED_WITHIN_BOUND]
    assert one(replace(base, expected=""), head) == [Verdict.CHANGED_WITHIN_BOUND]
