"""What the session that starts the ranks says of tests that did not pass on all of them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from parity.triage.results import SESSION, Failure, Outcome, merge

CONFTEST = Path(__file__).resolve().parents[1] / "distributed" / "conftest.py"


def said(*outcomes: Outcome) -> dict[str, str]:
    spec = spec_from_file_location("distributed_conftest", CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    conftest = module_from_spec(spec)
    spec.loader.exec_module(conftest)
    return {
        name.rpartition(".")[2]: text for name, text in conftest.sentences(merge(outcomes)).items()
    }


def failed(name: str, failure: Failure) -> Outcome:
    return Outcome(f"t/test_a.py::{name}", "failed", (failure,))


def test_a_pass_of_all_ranks_is_nothing_to_say() -> None:
    passed = Outcome("t/test_a.py::test_a", "passed")
    assert said(passed, passed) == {"test_a": ""}


def test_one_rank_that_fails_is_named() -> None:
    wrong = Failure("AssertionError: N", exact="AssertionError: 3", ranks=(1,))
    outcomes = (Outcome("t/test_a.py::test_a", "passed"), failed("test_a", wrong))
    assert said(*outcomes) == {"test_a": "AssertionError: 3 (ranks 1)"}


def test_a_hanging_rank_is_named_in_what_it_left_undone_too() -> None:
    hang = Failure(
        "still running at the deadline in this test", "a.py:f", phase=SESSION, ranks=(2,)
    )
    line = "still running at the deadline in this test | a.py:f (ranks 2)"
    assert said(failed("test_a", hang), Outcome("t/test_a.py::test_b", "not_run")) == {
        "test_a": line,
        "test_b": "Expected a result from every rank but got not_run."
        f"\nt/test_a.py::test_a: {line}",
    }


def test_a_skip_inside_the_ranks_is_no_pass() -> None:
    skipped = said(Outcome("t/test_a.py::test_a", "skipped"))
    assert skipped == {"test_a": "Expected a result from every rank but got skipped."}
