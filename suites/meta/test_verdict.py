"""The classification of record pairs: total, symmetric, and neither too kind nor too harsh."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.judging import OTHER_REFERENCE, families, hidden, judge
from parity.record import STATUSES, Finding, Record
from parity.verdict import BOTH_FAIL, EXIT_CODES, Exit, Judgement, Verdict, exit_code

WRONG = Finding("values", "output", "mismatch", band="1e0", locus="last row", sentence="Wrong.")
MOVED = Finding("values", "output", "mismatch", band="1e3", locus="row 0", sentence="Wrong.")
GRADIENT = Finding("gradient", "t.grad", "mismatch", sentence="Gradient wrong.")
STOPPED = Finding("runs", "forward", "AssertionError", frame="a.py:f", sentence="It raised.")
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


# Verdicts by outcome in base (rows) and in head (columns); "failed" is the same failure in both.
LETTERS = {
    "=": [Verdict.IDENTICAL],
    "R": [Verdict.REGRESSION],
    "F": [Verdict.FIXED],
    "P": [Verdict.PRE_EXISTING],
    "X": [Verdict.FIXED, Verdict.REGRESSION],
    "N": [Verdict.NEW_CAPABILITY],
    "L": [Verdict.LOST_CAPABILITY],
    "U": [Verdict.UNSUPPORTED],
    "i": [Verdict.INFRASTRUCTURE],
    "-": [Verdict.NOT_RUN],
}
OUTCOMES = ("passed", "failed", "unsupported", "crashed", "timeout", "infrastructure", "missing")
TABLE = {
    "passed": "= R L R R i -",
    "failed": "F P L X X i -",
    "unsupported": "N R U R R i -",
    "crashed": "F X L P X i -",
    "timeout": "F X L X P i -",
    "infrastructure": "i i i i i i -",
    "missing": "- - - - - - -",
}


def test_reasons_that_differ_in_numbers_only_belong_together() -> None:
    reasons = ["No width of 3.", "No width of 12.", "No height of 3."]
    broken = record("c", status="infrastructure")
    found = [verdicts([replace(broken, reason=reason)], [PASSED])[0] for reason in reasons]
    assert [item.sentence for item in found] == reasons
    assert found[0].family == found[1].family != found[2].family


def outcome(status: str) -> dict[str, Record]:
    found = (WRONG,) if status == "failed" else ()
    return {} if status == "missing" else {"c": record("c", *found, status=status)}


@pytest.mark.parametrize(
    ("base", "head", "letter"),
    [
        (base, head, letter)
        for base, row in TABLE.items()
        for head, letter in zip(OUTCOMES, row.split(), strict=True)
    ],
)
def test_every_pair_of_outcomes(base: str, head: str, letter: str) -> None:
    found = judge({"c": "op"}, outcome(base), outcome(head))
    assert [item.verdict for item in found] == LETTERS[letter]


def test_the_table_has_every_outcome() -> None:
    assert set(TABLE) == set(OUTCOMES) == {*STATUSES, "missing"}


SMALL, LARGE = (replace(WRONG, band=band) for band in ("up to 4 bounds", "far off"))
ELSEWHERE = replace(SMALL, locus="row 9")
# Verdicts by the failures of a case in base and in head.  The last column holds what base and head
# both show in another case, which counts only where an arm could not come to show it here.
FAILURES = [
    ([WRONG], [WRONG], [], "P"),
    ([WRONG], [WRONG, GRADIENT], [], "PR"),
    ([WRONG, GRADIENT], [WRONG], [], "PF"),
    ([WRONG], [GRADIENT], [], "FR"),
    ([WRONG], [GRADIENT], [WRONG, GRADIENT], "FR"),
    ([WRONG], [MOVED], [], "CC"),
    ([SMALL], [ELSEWHERE], [], "CC"),
    ([SMALL], [LARGE], [], "CR"),
    ([LARGE], [SMALL], [], "FC"),
    ([SMALL], [LARGE], [LARGE], "CR"),
    ([SMALL, LARGE], [LARGE, ELSEWHERE], [], "CPC"),
    ([], [SMALL], [SMALL], "R"),
    ([SMALL], [], [SMALL], "F"),
    ([RAISED], [RAISED], [], "P"),
    ([RAISED], [GRADIENT], [], "FR"),
    ([RAISED], [GRADIENT], [GRADIENT], "FP"),
    ([GRADIENT], [RAISED], [], "FR"),
    ([GRADIENT], [RAISED], [GRADIENT], "PR"),
    ([GRADIENT], [RAISED], [GRADIENT, RAISED], "PR"),
    ([STOPPED], [SMALL], [SMALL], "FP"),
    ([STOPPED], [LARGE], [SMALL], "FR"),
    ([STOPPED], [SMALL], [LARGE], "FP"),
    ([STOPPED], [RAISED], [RAISED], "FP"),
    ([RAISED], [STOPPED], [STOPPED], "FR"),
]
MEANINGS = {
    "P": Verdict.PRE_EXISTING,
    "C": Verdict.PRE_EXISTING_CHANGED,
    "R": Verdict.REGRESSION,
    "F": Verdict.FIXED,
}


@pytest.mark.parametrize(("base", "head", "other", "expected"), FAILURES)
def test_every_pair_of_failures(
    base: list[Finding], head: list[Finding], other: list[Finding], expected: str
) -> None:
    pair = (
        [record("c", *base), record("other", *other)],
        [record("c", *head), record("other", *other)],
    )
    found = [item for item in verdicts(*pair) if item.case_id == "c"]
    assert [item.verdict for item in found] == [MEANINGS[letter] for letter in expected]
    assert all(
        item.sentence.endswith((WRONG.sentence, "Gradient wrong.", "It raised.")) for item in found
    )


@pytest.mark.parametrize(
    ("new", "other", "expected"),
    [
        (record("new", LARGE), record("other"), Verdict.REGRESSION),
        (record("new", LARGE), record("other", SMALL), Verdict.REGRESSION),
        (record("new", LARGE), record("other", LARGE), Verdict.NEW_TEST_BASE_CAUSE),
        (record("new", SMALL), record("other", LARGE), Verdict.NEW_TEST_BASE_CAUSE),
        (record("new", LARGE), replace(record("other", LARGE), op="second"), Verdict.REGRESSION),
        (record("new", status="crashed"), record("other", status="timeout"), Verdict.REGRESSION),
        (
            record("new", status="crashed"),
            record("other", status="crashed"),
            Verdict.NEW_TEST_BASE_CAUSE,
        ),
    ],
)
def test_a_failure_where_base_could_not_run(new: Record, other: Record, expected: Verdict) -> None:
    """It is base's own only where another case of the op fails there alike, and as much."""
    base = {"new": record("new", status="unsupported"), "other": other}
    (found,) = judge({"new": "op"}, base, {"new": new})
    excused = expected == Verdict.NEW_TEST_BASE_CAUSE
    assert (found.verdict, found.evidence) == (expected, "other" if excused else "")
    assert found.sentence.startswith("New in head and wrong: ") == (not excused)


HAZARD = Finding("hazard", "output", "race", band="bits", sentence="Lanes may race.")
PASSED = record("c")
# Everything else that a case may get, and how it is told.
TOLD = [
    (PASSED, PASSED, ["IDENTICAL "]),
    (
        PASSED,
        replace(PASSED, digests={"output": "e", "t.grad": "d"}, headroom={"output": 0.75}),
        ["CHANGED_WITHIN_BOUND The bits of output differ, and both arms keep the bound."],
    ),
    (
        PASSED,
        replace(PASSED, digests={"output": "d", "extra": "d"}),
        ["CHANGED_WITHIN_BOUND The bits of extra, t.grad differ, and both arms keep the bound."],
    ),
    (
        replace(PASSED, digests={}),
        replace(PASSED, digests={}),
        ["INCONCLUSIVE Neither arm recorded an output to compare."],
    ),
    (
        replace(PASSED, digests={}),
        PASSED,
        ["CHANGED_WITHIN_BOUND The bits of output, t.grad differ, and both arms keep the bound."],
    ),
    (
        replace(PASSED, inputs="a"),
        replace(PASSED, inputs="b"),
        [
            "INCONCLUSIVE The two arms were given different inputs, so their results cannot be "
            "compared."
        ],
    ),
    (replace(PASSED, inputs="a"), replace(PASSED, inputs="a"), ["IDENTICAL "]),
    (replace(PASSED, inputs="a"), PASSED, ["IDENTICAL "]),
    (PASSED, replace(PASSED, inputs="b"), ["IDENTICAL "]),
    (
        record("c", WRONG),
        record("c", status="unsupported"),
        ["LOST_CAPABILITY Base could run this, head cannot: because unsupported"],
    ),
    (
        record("c", status="unsupported"),
        PASSED,
        ["NEW_CAPABILITY Head passes where base could not run: because unsupported"],
    ),
    (
        record("c", status="unsupported"),
        replace(record("c", status="unsupported"), reason="no such flag"),
        ["UNSUPPORTED no such flag"],
    ),
    (
        record("c", WRONG),
        record("c", status="infrastructure"),
        ["INFRASTRUCTURE because infrastructure"],
    ),
    (
        PASSED,
        record("c", status="crashed"),
        ["REGRESSION The process that ran this case was lost: because crashed."],
    ),
    (
        PASSED,
        record("c", status="timeout"),
        ["REGRESSION This case did not end in time: because timeout."],
    ),
    (
        record("c", SMALL),
        record("c", ELSEWHERE),
        [
            "PRE_EXISTING_CHANGED Fails in both, but not alike; in base: Wrong.",
            "PRE_EXISTING_CHANGED Fails in both, but not alike; in head: Wrong.",
        ],
    ),
    (
        replace(PASSED, hazards=(HAZARD,)),
        replace(PASSED, hazards=(HAZARD,)),
        ["IDENTICAL ", "HAZARD In both, by analysis: Lanes may race."],
    ),
    (
        PASSED,
        replace(record("c", WRONG), hazards=(HAZARD,)),
        ["REGRESSION Wrong.", "HAZARD In head only, by analysis: Lanes may race."],
    ),
    (
        replace(PASSED, hazards=(HAZARD,)),
        PASSED,
        ["IDENTICAL ", "HAZARD In base only, by analysis: Lanes may race."],
    ),
    (
        replace(PASSED, cost={"forward launches": 2, "forward allocated": 5}),
        replace(PASSED, cost={"forward launches": 3, "forward allocated": 5, "extra": 9}),
        [
            "IDENTICAL ",
            "REGRESSION Expected at most 2 launches of Triton kernels in forward, as in base, but "
            "head has 3.",
        ],
    ),
    (
        replace(PASSED, cost={"forward launches": 2}),
        replace(PASSED, cost={"forward launches": 0}),
        [
            "IDENTICAL ",
            "INCONCLUSIVE Base launches Triton kernels here and head none, so that no kernel of "
            "head was compared; find out why it gives way to something else, or gate that on its "
            "own.",
        ],
    ),
]


@pytest.mark.parametrize(("base", "head", "expected"), TOLD)
def test_every_sentence(base: Record, head: Record, expected: list[str]) -> None:
    assert [f"{item.verdict} {item.sentence}" for item in verdicts([base], [head])] == expected


@pytest.mark.parametrize(
    ("base", "head", "missing"),
    [([], [], "base and head"), ([PASSED], [], "head"), ([], [PASSED], "base")],
)
def test_a_case_without_a_record(base: list[Record], head: list[Record], missing: str) -> None:
    one, other = ({item.case_id: item for item in arm} for arm in (base, head))
    (found,) = judge({"c": "op"}, one, other)
    assert (found.op, found.case_id) == ("op", "c")
    assert found.sentence == f"This case has no record in {missing}."


def test_cases_with_one_reason_belong_together_and_so_do_failures_of_one_kind() -> None:
    """By the family of a verdict, which is a reason, or a failure without size and place."""
    for base, head, family in (
        (record("c", status="unsupported"), PASSED, "because unsupported"),
        (PASSED, record("c", status="unsupported"), "because unsupported"),
        (PASSED, record("c", status="infrastructure"), "because infrastructure"),
        (PASSED, record("c", LARGE), "values | output | mismatch"),
        (PASSED, replace(PASSED, inputs="b"), ""),
    ):
        (found,) = verdicts([base], [head])
        assert found.family == family
    dearer = [replace(PASSED, cost={"forward launches": count}) for count in (1, 2)]
    (_, found) = verdicts(dearer[:1], dearer[1:])
    assert found.signature == found.family == "cost | forward launches"
    (found,) = verdicts([PASSED], [record("c", LARGE)])
    assert found.signature == "values | output | mismatch | far off | last row"
    assert found.size == 3


def test_a_lost_process_and_a_passed_deadline_are_failures_by_the_signal_that_ended_them() -> None:
    for status, signature in (
        ("crashed", "runs | process | crashed | because crashed"),
        ("timeout", "runs | process | timeout"),
    ):
        (found,) = verdicts([PASSED], [record("c", status=status)])
        assert (found.signature, found.family) == (signature, f"runs | process | {status}")
        assert found.size == 0


def test_headroom_of_the_tensors_that_changed() -> None:
    head = replace(PASSED, digests={"output": "e", "t.grad": "e"}, headroom={"output": 0.75})
    (item,) = verdicts([PASSED], [head])
    assert item.headroom == {"output": (0.5, 0.75)}


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (STOPPED, WRONG, True),
        (RAISED, GRADIENT, True),
        (RAISED, WRONG, False),
        (GRADIENT, WRONG, False),
    ],
)
def test_whether_an_arm_came_to_a_check(base: Finding, head: Finding, expected: bool) -> None:
    """An arm that raised in backward has shown its outputs, and not its gradients."""
    one, other = record("c", base), record("c", head)
    for arms, verdict in (((one, other), Verdict.REGRESSION), ((other, one), Verdict.FIXED)):
        (blamed,) = [
            item
            for item in verdicts([arms[0]], [arms[1]])
            if item.verdict == verdict and item.signature == head.signature
        ]
        assert hidden(blamed, *arms) == expected


def test_what_an_arm_could_not_run_is_hidden_and_what_is_no_accusation_is_not() -> None:
    base, head = record("c", status="unsupported"), record("c", WRONG)
    (blamed,) = verdicts([base], [head])
    assert hidden(blamed, base, head)
    assert not hidden(replace(blamed, verdict=Verdict.PRE_EXISTING), base, head)
    assert not hidden(replace(blamed, signature="another"), head, head)


def test_a_failure_base_could_not_reach_is_excused_by_another_case() -> None:
    base = [record("hidden", RAISED), record("shown", GRADIENT)]
    head = [record("hidden", GRADIENT), record("shown", GRADIENT)]
    found = {(item.case_id, item.verdict, item.evidence) for item in verdicts(base, head)}
    assert found == {
        ("hidden", Verdict.FIXED, ""),
        ("hidden", Verdict.PRE_EXISTING, "shown"),
        ("shown", Verdict.PRE_EXISTING, ""),
    }


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


def test_the_clean_first_run_of_a_case_is_compared_whatever_a_further_run_showed() -> None:
    """Bits and cost; what failed in the first run has neither of its own."""
    base, other = record("c", EXTRA), record("c", EXTRA, digest="e")
    assert one(base, base) == [Verdict.PRE_EXISTING]
    assert one(base, other) == [Verdict.PRE_EXISTING, Verdict.CHANGED_WITHIN_BOUND]
    assert one(record("c"), other) == [Verdict.REGRESSION, Verdict.CHANGED_WITHIN_BOUND]
    dear, cheap = (replace(base, cost={"forward launches": n}) for n in (2, 1))
    assert Verdict.REGRESSION in one(cheap, dear)
    unsupported = record("c", status="unsupported")
    _, capability = verdicts([unsupported], [base])
    assert capability.verdict == Verdict.NEW_CAPABILITY
    assert capability.sentence.startswith("Head fails in a further run only where base could not")
    assert Verdict.NEW_CAPABILITY not in one(unsupported, record("c", WRONG))
    assert one(record("c", WRONG, EXTRA), record("c", WRONG, EXTRA, digest="e")) == [
        Verdict.PRE_EXISTING,
        Verdict.PRE_EXISTING,
    ]


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


# The exit code of a verdict alone, and beside an identical case.
CODES = {
    Verdict.IDENTICAL: (0, 0),
    Verdict.GENERATED_CODE_IDENTICAL: (0, 0),
    Verdict.CHANGED_WITHIN_BOUND: (0, 0),
    Verdict.DRIFT: (1, 1),
    Verdict.REGRESSION: (1, 1),
    Verdict.PRE_EXISTING: (10, 0),
    Verdict.PRE_EXISTING_CHANGED: (10, 0),
    Verdict.NEW_TEST_BASE_CAUSE: (10, 0),
    Verdict.NEW_CAPABILITY: (0, 0),
    Verdict.LOST_CAPABILITY: (1, 1),
    Verdict.FIXED: (0, 0),
    Verdict.NONDETERMINISTIC: (10, 10),
    Verdict.HAZARD: (5, 0),
    Verdict.TIERS_DISAGREE: (10, 10),
    Verdict.UNSUPPORTED: (5, 0),
    Verdict.INFRASTRUCTURE: (10, 10),
    Verdict.INCONCLUSIVE: (10, 10),
    Verdict.NOT_RUN: (10, 10),
}


def test_what_is_so_in_base_as_well_ends_no_gate() -> None:
    found = {verdict for verdict in Verdict if verdict.as_before}
    assert found == {
        Verdict.HAZARD,
        Verdict.NEW_TEST_BASE_CAUSE,
        Verdict.PRE_EXISTING,
        Verdict.PRE_EXISTING_CHANGED,
        Verdict.UNSUPPORTED,
    }
    assert {EXIT_CODES[verdict] for verdict in found} == {Exit.OK}


def test_the_exit_code_of_each_verdict() -> None:
    found = {v: (exit_code([v]), exit_code([v, Verdict.IDENTICAL])) for v in Verdict}
    assert found == CODES
    assert exit_code([]) == Exit.NOTHING_COMPARED


def test_the_exit_code_of_verdicts_together() -> None:
    """A regression outranks every doubt; a case that passes lifts only that there was none."""
    nothing_passes = {*BOTH_FAIL, Verdict.UNSUPPORTED}
    for found in (*itertools.combinations(Verdict, 2), nothing_passes):
        alone = {CODES[verdict][0] for verdict in found}
        beside = {CODES[verdict][1] for verdict in found}
        expected = max(beside & {10}, default=0) if 0 in alone else max(alone)
        assert exit_code(found) == (1 if 1 in alone else expected), found


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
    (found,) = verdicts([base], [head])
    assert (found.verdict, found.sentence) == (Verdict.INCONCLUSIVE, OTHER_REFERENCE)
    assert one(base, replace(head, expected="d")) == [Verdict.CHANGED_WITHIN_BOUND]
    assert one(replace(base, expected=""), head) == [Verdict.CHANGED_WITHIN_BOUND]
