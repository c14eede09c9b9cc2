"""What becomes of a mutant, by the record of a case or by whoever stops the hunt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from parity.arms import Arm
from parity.gate.power import with_power
from parity.gate.request import Request
from parity.mutation.baseline import Baseline
from parity.mutation.hunt import Lab, hunt
from parity.mutation.judge import Cases
from parity.mutation.mutants import Mutant, mutants
from parity.mutation.outcomes import Journal, Outcome
from parity.record import Finding, Record
from parity.verdict import Exit

PASSED = Record("c", "op", "base", "passed", checks=("runs", "values"), digests={"y": "1"})
WRONG = Finding("values", "y", "wrong values", sentence="Expected 1.")
ORDER = Finding("order", "y", "conflict", sentence="Two programs write y.")

FAILED = Record("c", "op", "base", "failed", findings=(WRONG,), checks=("runs", "values"))
KNOWN = replace(PASSED, hazards=(ORDER,))
LAB = Lab(Path("code"), Path("cache"), Path("log"))
TWO = [*mutants({"op.py": b"def op(x):\n    return x * 2 + 1\n"}, ["op"])][:2]


@pytest.mark.parametrize(
    ("base", "head", "end"),
    [
        (PASSED, PASSED, Outcome("survived")),
        (PASSED, FAILED, Outcome("killed", "op", "values", "c", "Expected 1.")),
        (FAILED, FAILED, Outcome("survived")),
        (
            PASSED,
            Record("c", "op", "", "timeout", reason="9 s"),
            Outcome("timeout", "op", "runs", "c", "This case did not end in time: 9 s."),
        ),
        (
            PASSED,
            Record("c", "op", "", "unsupported", reason="No flag."),
            Outcome(
                "killed", "op", "capability", "c", "Base could run this, head cannot: No flag."
            ),
        ),
        (PASSED, KNOWN, Outcome("killed", "op", "order", "c", "Two programs write y.")),
        (KNOWN, KNOWN, Outcome("survived")),
        (
            PASSED,
            Record("c", "op", "", "infrastructure", reason="no memory"),
            Outcome("survived", reason="no memory"),
        ),
        (replace(PASSED, digests={}), replace(PASSED, digests={}), "Neither arm recorded"),
    ],
)
def test_what_a_record_makes_of_a_mutant(base: Record, head: Record, end: Outcome | str) -> None:
    cases = Cases(LAB, {}, "", [], Baseline({"c": base}))
    found = cases._judged(replace(head, arm="head"))
    if isinstance(end, str):
        assert found.status == "survived"
        assert found.reason.startswith(end)
    else:
        assert found == end


class Judge:
    """Lets the first mutant live, and works on the second until it is told to stop."""

    def __init__(self) -> None:
        self.stopped = False

    def key(self, mutant: Mutant) -> str:
        return mutant.id

    def prepare(self) -> None:
        pass

    def __call__(self, mutant: Mutant, stop: Event) -> Outcome:
        if mutant is TWO[0]:
            return Outcome("survived")
        self.stopped = stop.wait(600)
        raise InterruptedError


def test_a_hunt_that_is_stopped_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parity.mutation.hunt.slots", lambda: 2)
    judge, journal = Judge(), Journal(tmp_path / "outcomes.jsonl")

    def interrupt(count: int, total: int) -> None:
        assert (count, total) == (1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hunt(judge, {mutant.id: mutant for mutant in TWO}, journal, interrupt)
    assert judge.stopped
    assert Journal(journal.path).found == {TWO[0].id: Outcome("survived")}


def arms(head: str) -> dict[str, Any]:
    found = {}
    for name, digest in (("base", "1"), ("head", head)):
        arm = Arm(name, "import_root", f"/{name}").to_dict()
        found[name] = arm | {"files": {f"/{name}/op.py": digest}}
    return found


@pytest.mark.parametrize(
    ("head", "code"), [("1", Exit.OK), ("2", Exit.INCONCLUSIVE), ("2", Exit.INTERRUPTED)]
)
def test_nothing_is_planted_where_nothing_changed_or_nothing_passed(head: str, code: Exit) -> None:
    result = {"exit_code": int(code), "sentence": "As before."}
    assert with_power(Path(), Request(), arms(head), result) == result | {"power": None}
