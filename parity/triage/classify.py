"""Which failures a change causes: base's and head's outcomes of the same tests, side by side.

Pure: outcomes in, rows out.  A failure is the change's unless base shows the same one, and a test
that passed on base is never excused by what another test shows there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .cause import Cause, Row
from .results import COLLECT, SESSION, Failure, Outcome, Results, function, key

RAN = ("passed", "failed")
ON_BASE_CODE = "(this change's test on base's code)"


def classify(base: Results, head: Results, cross: Results | None = None) -> list[Row]:
    """The rows of two arms, the most urgent first.

    ``cross`` are outcomes of head's tests on base's code, for tests that base does not have.
    """
    pair = _Pair(_Arm(base), _Arm(head), cross or {})
    rows = [row for name in dict.fromkeys([*base, *head]) for row in _rows(pair, name)]
    rows += [
        _empty(name) for name, arm in (("base", pair.base), ("head", pair.head)) if not arm.ran
    ]
    return sorted(rows, key=lambda row: list(Cause).index(row.verdict))


@dataclass(frozen=True)
class _Arm:
    """The outcomes of one arm, and where each failure shows in it."""

    results: Results

    @cached_property
    def seen(self) -> dict[str, list[Outcome]]:
        """By signature, and by what siblings have in common."""
        found: dict[str, list[Outcome]] = {}
        for outcome in self.results.values():
            for failure in outcome.failures:
                for name in (failure.signature, *_alike(outcome.id, failure)):
                    found.setdefault(name, []).append(outcome)
        return found

    @cached_property
    def broken_modules(self) -> list[str]:
        """The keys of what could not be collected."""
        return [
            name
            for name, outcome in self.results.items()
            if any(failure.phase == COLLECT for failure in outcome.failures)
        ]

    @cached_property
    def ran(self) -> bool:
        """Whether any test ran; a file or a session that broke is no test."""
        return any(
            outcome.status == "passed"
            or any(failure.phase not in (COLLECT, SESSION) for failure in outcome.failures)
            for outcome in self.results.values()
        )

    @cached_property
    def cut_short(self) -> bool:
        """Whether a session broke, so that a test without an outcome may only be unreported."""
        every = (failure for outcome in self.results.values() for failure in outcome.failures)
        return any(failure.phase == SESSION for failure in every)

    def hides(self, name: str) -> bool:
        """Whether this arm could not show what a test does: its file was not imported."""
        return any(name.startswith((f"{module}.", f"{module}[")) for module in self.broken_modules)

    def has_tests_in(self, module: str) -> bool:
        """Whether a file was imported and a test of it ran."""
        return any(
            name.startswith(f"{module}.") and outcome.status in RAN
            for name, outcome in self.results.items()
        )


@dataclass(frozen=True)
class _Pair:
    base: _Arm
    head: _Arm
    cross: Results

    @cached_property
    def gone(self) -> set[str]:
        """Functions with parameters that only base has: a new test of one may be an old one."""
        return {function(name) for name in self.base.results if name not in self.head.results}

    @cached_property
    def new(self) -> dict[str, list[Outcome]]:
        """The tests that only head has, by function."""
        found: dict[str, list[Outcome]] = {}
        for name, outcome in self.head.results.items():
            if name not in self.base.results:
                found.setdefault(function(name), []).append(outcome)
        return found


@dataclass(frozen=True)
class _Told:
    """What both arms say of one test; makes its rows."""

    id: str
    base: str
    head: str

    def row(
        self, verdict: Cause, reason: str, failure: Failure | None = None, evidence: str = ""
    ) -> Row:
        signature = failure.signature if failure else ""
        return Row(self.id, verdict, self.base, self.head, signature, evidence, reason)


def _rows(pair: _Pair, name: str) -> Iterator[Row]:
    """The rows of one test: none if it passed, or was skipped, in both arms."""
    base, head = pair.base.results.get(name), pair.head.results.get(name)
    before = base.status if base else "absent"
    after = head.status if head else "absent"
    told = _Told((head or base or _NOBODY).id, before, after)
    if base and head and before == after == "failed":
        yield from _both(pair, told, base, head)
    elif head and after == "failed":
        yield from (_new(pair, told, name, before, failure) for failure in head.failures)
    elif after == "not_run":
        yield told.row(Cause.NOT_RUN, "the session ended before this test")
    elif base and after == "absent":
        yield from _gone(pair, told, name, base)
    elif base and before == "failed" and after == "passed":
        yield from (told.row(Cause.FIXED, "passes now", failure) for failure in base.failures)
    elif before in RAN and after == "skipped":
        yield told.row(Cause.SKIPPED_IN_HEAD, "ran on base and is skipped now")
    elif before == "skipped" and after == "passed":
        yield told.row(Cause.SKIPPED_IN_BASE, "passes now and was skipped on base")


_NOBODY = Outcome("", "not_run")


def _both(pair: _Pair, told: _Told, base: Outcome, head: Outcome) -> Iterator[Row]:
    """A test that fails in both arms, perhaps not alike."""
    before = {failure.signature: failure for failure in base.failures}
    after = {failure.signature: failure for failure in head.failures}
    moved = {f.kind for f in base.failures} & {f.kind for f in head.failures}
    for signature, failure in after.items():
        if signature in before:
            yield told.row(Cause.PRE_EXISTING, "fails alike on base", failure, told.id)
        elif failure.kind in moved:
            reason = "fails with the same message on base, in another place"
            yield told.row(Cause.PRE_EXISTING_CHANGED, reason, failure, told.id)
        elif shown := _elsewhere(pair.base, told.id, failure):
            reason = "fails on base for another reason, which hid this one"
            yield told.row(Cause.PRE_EXISTING_CHANGED, reason, failure, shown)
        else:
            yield _caused(told, failure, "fails on base as well, but not like this")
    for signature, failure in before.items():
        hidden = _elsewhere(pair.head, told.id, failure)
        if signature not in after and failure.kind not in moved and not hidden:
            yield _lifted(told, failure, "this failure is gone, another has come")


def _new(pair: _Pair, told: _Told, name: str, before: str, failure: Failure) -> Row:
    """A failure of head in a test that did not fail on base."""
    if before == "passed" or (failure.phase == COLLECT and pair.base.has_tests_in(name)):
        return _caused(told, failure, "passed on base")
    again = pair.cross.get(name)
    if again and again.status == "passed":
        return _caused(told, failure, "new, and passes on base's code")
    if again and any(_is_same(failure, other) for other in again.failures):
        evidence = f"{again.id} {ON_BASE_CODE}"
        reason = "new, and fails alike on base's code"
        return told.row(Cause.NEW_TEST_BASE_CAUSE, reason, failure, evidence)
    shown = _elsewhere(pair.base, told.id, failure, only_siblings=function(name) in pair.gone)
    if shown:
        return told.row(Cause.NEW_TEST_BASE_CAUSE, "base fails alike", failure, shown)
    if before == "not_run" or pair.base.hides(name) or not pair.base.ran:
        reason = "base did not get as far as this test, so it cannot tell"
        return told.row(Cause.INCONCLUSIVE, reason, failure)
    reason = "skipped on base" if before == "skipped" else "new, and base shows no such failure"
    return _caused(told, failure, reason)


def _is_same(failure: Failure, other: Failure) -> bool:
    """Whether one test fails for one cause on both codes, down to the values it saw.

    A test of new behaviour fails on base's code too, but there it sees other values.  An error of
    the test's own lines has no place, and says nothing of the code.
    """
    alike = failure.signature == other.signature and failure.exact == other.exact
    return bool(failure.place) and alike


def _caused(told: _Told, failure: Failure, reason: str) -> Row:
    """A failure that only head shows, named after where it happened."""
    special = {COLLECT: Cause.COLLECTION_ERROR, SESSION: Cause.INFRASTRUCTURE}
    verdict = special.get(failure.phase, Cause.REGRESSION)
    lost = f"rank {', '.join(map(str, failure.ranks))}" if failure.ranks else ""
    return told.row(verdict, reason, failure, lost)


def _lifted(told: _Told, failure: Failure, reason: str) -> Row:
    """A failure that only base shows."""
    verdict = Cause.INFRASTRUCTURE if failure.phase == SESSION else Cause.FIXED
    return told.row(verdict, reason, failure)


def _gone(pair: _Pair, told: _Told, name: str, base: Outcome) -> Iterator[Row]:
    """A test that head does not have: renamed, removed, or lost."""
    if base.status not in RAN:
        return
    if any(failure.phase in (COLLECT, SESSION) for failure in base.failures):
        yield from (_mended(pair, told, name, failure) for failure in base.failures)
    elif pair.head.hides(name) or pair.head.cut_short:
        yield told.row(Cause.NOT_RUN, "its file was not collected, or the session broke")
    elif others := pair.new.get(function(name)):
        names = f"{others[0].id} and others" if len(others) > 1 else others[0].id
        yield told.row(Cause.RENAMED_PARAMETERS, f"now {names}")
    elif base.status == "failed":
        reason = "fails on base; this change has no such test, which is no fix"
        yield told.row(Cause.REMOVED, reason, base.failures[0])
    else:
        yield told.row(Cause.NOT_RUN, "passed on base; this change has no such test")


def _mended(pair: _Pair, told: _Told, name: str, failure: Failure) -> Row:
    """A file or a session that broke on base only."""
    if failure.phase == COLLECT and not pair.head.has_tests_in(name):
        return told.row(Cause.REMOVED, "no test of this file ran, which is no fix", failure)
    return _lifted(told, failure, "does not break now")


def _elsewhere(arm: _Arm, test: str, failure: Failure, *, only_siblings: bool = False) -> str:
    """The id of another test in which an arm shows this failure, a sibling's first."""
    names = _alike(test, failure) + (() if only_siblings else (failure.signature,))
    found = (outcome for name in names for outcome in arm.seen.get(name, ()))
    return next((outcome.id for outcome in found if key(outcome.id) != key(test)), "")


def _alike(test: str, failure: Failure) -> tuple[str, str]:
    """What siblings have in common: function, place, and message with or without parameters."""
    kinds = (failure.kind, failure.sibling)
    first, second = ("\n".join((function(key(test)), kind, failure.place)) for kind in kinds)
    return first, second


def _empty(arm: str) -> Row:
    return Row(f"({arm})", Cause.ZERO_TESTS, "", "", reason=f"no test ran on {arm}")
