"""The verdicts of triage, the row that carries one, and the exit code that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ..verdict import EXIT_CODES as GATE_CODES
from ..verdict import Exit, Verdict


class Cause(StrEnum):
    """What base and head say together about one failure or one test."""

    REGRESSION = "REGRESSION"
    COLLECTION_ERROR = "COLLECTION_ERROR"
    INFRASTRUCTURE = "INFRASTRUCTURE"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_RUN = "NOT_RUN"
    SKIPPED_IN_HEAD = "SKIPPED_IN_HEAD"
    ZERO_TESTS = "ZERO_TESTS"
    NEW_TEST_BASE_CAUSE = "NEW_TEST_BASE_CAUSE"
    PRE_EXISTING_CHANGED = "PRE_EXISTING_CHANGED"
    PRE_EXISTING = "PRE_EXISTING"
    RENAMED_PARAMETERS = "RENAMED_PARAMETERS"
    REMOVED = "REMOVED"
    SKIPPED_IN_BASE = "SKIPPED_IN_BASE"
    FIXED = "FIXED"


OWN_CODES: dict[Cause, Exit] = {
    Cause.COLLECTION_ERROR: Exit.REGRESSION,
    Cause.SKIPPED_IN_HEAD: Exit.INCONCLUSIVE,
    Cause.ZERO_TESTS: Exit.NOTHING_COMPARED,
    Cause.RENAMED_PARAMETERS: Exit.OK,
    Cause.REMOVED: Exit.OK,
    Cause.SKIPPED_IN_BASE: Exit.OK,
}
# What the gate says as well has the same exit code there.
EXIT_CODES = {
    cause: OWN_CODES[cause] if cause in OWN_CODES else GATE_CODES[Verdict(cause)] for cause in Cause
}
ALWAYS_COUNTED = (Cause.PRE_EXISTING, Cause.NEW_TEST_BASE_CAUSE, Cause.FIXED, Cause.REGRESSION)


@dataclass(frozen=True)
class Row:
    """One verdict: on a failure, or on a test that did not run alike in both arms.

    ``base`` and ``head`` are what the test did there, ``evidence`` the id of the base test that
    shows the cause (or who was lost, for a process), ``reason`` why this verdict.
    """

    id: str
    verdict: Cause
    base: str
    head: str
    signature: str = ""
    evidence: str = ""
    reason: str = ""


def exit_code(rows: Iterable[Row]) -> Exit:
    """A regression outranks everything, then that nothing was compared, then every doubt."""
    found = {EXIT_CODES[row.verdict] for row in rows}
    order = (Exit.REGRESSION, Exit.NOTHING_COMPARED, Exit.INCONCLUSIVE)
    return next((code for code in order if code in found), Exit.OK)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each verdict; the four that a reader looks for are told even at zero."""
    found = Counter(str(row.verdict) for row in rows)
    return dict.fromkeys(map(str, ALWAYS_COUNTED), 0) | dict(found)
