"""What the gate asks further where one arm never came to the check that the other fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from parity.case import Case
from parity.gate.comparison import SEEDS_ASKED, Comparison
from parity.record import Finding, Record
from parity.runs import Run
from parity.shrink import siblings
from parity.spec import Input, OpSpec, Output
from parity.verdict import Judgement, Verdict

SPEC = OpSpec(
    "op", "a:f", "a:f", (Input("x", "rows"),), (Output("y"),), {}, flags={"inverse": (False, True)}
)
PLAIN = {"x": "contiguous", "y.grad": "contiguous", "values": "normal"}
CASE = Case("op", "plain", "float32", {"tokens": 1}, flags={"inverse": True}, variants=PLAIN)
(SIBLING,) = siblings(SPEC, CASE)
WRONG = Finding("values", "y", "wrong values", sentence="Expected 1 but got 2.")
RELATION = replace(WRONG, check="relation:swap")  # a check that the seed draws
LACKS = Record("", "op", "base", "unsupported", reason="No inverse.")
RAISED = Record(
    "", "op", "base", "failed", findings=(Finding("runs", "forward", "Error"),), checks=("runs",)
)
PASSED = Record("", "op", "base", "passed", checks=("runs", "values"), digests={"y": "1"})


def failed(finding: Finding) -> Record:
    return Record("", "op", "head", "failed", findings=(finding,), checks=("runs", finding.check))


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., Comparison]:
    """A gate of one case whose siblings have run in both arms, so that no process is needed."""

    def made(base: Record, head: Record, *asked: tuple[Record, Record]) -> Comparison:
        comparison = Comparison(Run.create(tmp_path), {}, [(SPEC, CASE)])
        for arm, record in (("base", base), ("head", head)):
            comparison.records[arm][CASE.id] = replace(record, case_id=CASE.id, arm=arm)
        for step, pair in enumerate(asked):
            case_id = replace(SIBLING, seed=SIBLING.seed + step).id
            for arm, record in zip(("base", "head"), pair, strict=True):
                comparison.probed[arm, case_id] = replace(record, case_id=case_id, arm=arm)
        return comparison

    return made


def asked(comparison: Comparison) -> tuple[int, Verdict]:
    """How many further cases were asked for, and what the failure of the case is in the end."""
    comparison.ask_siblings()
    judgement, *_ = comparison.judgements()
    return len(comparison.probes), judgement.verdict


def test_a_sibling_in_which_base_fails_alike_excuses_head(gate: Callable[..., Comparison]) -> None:
    for stuck, excused in ((LACKS, Verdict.NEW_TEST_BASE_CAUSE), (RAISED, Verdict.PRE_EXISTING)):
        comparison = gate(stuck, failed(WRONG), (failed(WRONG), failed(WRONG)))
        verdicts = {item.signature: item.verdict for item in comparison.judgements()}
        assert verdicts[WRONG.signature] is Verdict.REGRESSION
        comparison.ask_siblings()
        verdicts = {item.signature: item.verdict for item in comparison.judgements()}
        assert verdicts[WRONG.signature] is excused


def test_a_sibling_that_base_passes_or_fails_otherwise_excuses_nothing(
    gate: Callable[..., Comparison],
) -> None:
    for shown in (PASSED, failed(replace(WRONG, tensor="z")), LACKS):
        assert asked(gate(LACKS, failed(WRONG), (shown, failed(WRONG)))) == (1, Verdict.REGRESSION)


def test_a_check_that_the_seed_draws_is_asked_for_in_many_seeds(
    gate: Callable[..., Comparison],
) -> None:
    quiet = (PASSED, PASSED)
    loud = (failed(RELATION), failed(RELATION))
    head = failed(RELATION)
    assert asked(gate(LACKS, head, quiet, loud)) == (2, Verdict.NEW_TEST_BASE_CAUSE)
    assert asked(gate(LACKS, head, *[quiet] * SEEDS_ASKED)) == (SEEDS_ASKED, Verdict.REGRESSION)
    assert asked(gate(LACKS, head, quiet, (LACKS, head))) == (2, Verdict.REGRESSION)


def test_nothing_is_asked_where_the_other_arm_came_to_the_check(
    gate: Callable[..., Comparison],
) -> None:
    assert asked(gate(PASSED, failed(WRONG))) == (0, Verdict.REGRESSION)


def test_one_question_is_asked_once(gate: Callable[..., Comparison]) -> None:
    comparison = gate(LACKS, failed(WRONG), (PASSED, failed(WRONG)))
    twin = replace(CASE, flags={"inverse": True}, axes={"tokens": 2})
    comparison.jobs.append((SPEC, twin))
    for records in comparison.records.values():
        records[twin.id] = replace(records[CASE.id], case_id=twin.id)
    comparison.ask_siblings()
    assert len(comparison.probes) == 1


def unseen(comparison: Comparison) -> Judgement:
    item = next(i for i in comparison.judgements() if i.signature.startswith("relation:"))
    return comparison.unseen(item)


def test_what_an_arm_never_checked_is_inconclusive(gate: Callable[..., Comparison]) -> None:
    """Base raises in the case, and came to this relation in no other."""
    found = unseen(gate(RAISED, failed(RELATION)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence.startswith("Not comparable, since base came to this check in no case: ")
    found = unseen(gate(failed(RELATION), RAISED))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence.startswith("Not comparable, since head came to this check in no case: ")


def test_what_an_arm_checked_elsewhere_or_cannot_do_stays_what_it_is(
    gate: Callable[..., Comparison],
) -> None:
    comparison = gate(RAISED, failed(RELATION))
    comparison.probes.append((replace(PASSED, checks=("runs", RELATION.check)), PASSED))
    assert unseen(comparison).verdict is Verdict.REGRESSION
    assert unseen(gate(LACKS, failed(RELATION))).verdict is Verdict.REGRESSION
    came = replace(PASSED, checks=("runs", RELATION.check))
    assert unseen(gate(came, failed(RELATION))).verdict is Verdict.REGRESSION
    values = gate(RAISED, failed(WRONG))
    for item in values.judgements():
        assert values.unseen(item) == item  # no seed draws these checks
