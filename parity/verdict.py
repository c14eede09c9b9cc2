"""The verdicts on a change, and the exit code that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Exit(IntEnum):
    """Exit codes of ``parity``."""

    OK = 0
    REGRESSION = 1
    INTERRUPTED = 2
    FAULT = 3
    USAGE = 4
    NOTHING_COMPARED = 5
    INCONCLUSIVE = 10


class Verdict(StrEnum):
    """What base and head say together about one case, or about one failure of it."""

    IDENTICAL = "IDENTICAL"
    GENERATED_CODE_IDENTICAL = "GENERATED_CODE_IDENTICAL"
    CHANGED_WITHIN_BOUND = "CHANGED_WITHIN_BOUND"
    DRIFT = "DRIFT"
    REGRESSION = "REGRESSION"
    PRE_EXISTING = "PRE_EXISTING"
    PRE_EXISTING_CHANGED = "PRE_EXISTING_CHANGED"
    NEW_TEST_BASE_CAUSE = "NEW_TEST_BASE_CAUSE"
    NEW_CAPABILITY = "NEW_CAPABILITY"
    LOST_CAPABILITY = "LOST_CAPABILITY"
    FIXED = "FIXED"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    HAZARD = "HAZARD"
    TIERS_DISAGREE = "TIERS_DISAGREE"
    UNSUPPORTED = "UNSUPPORTED"
    INFRASTRUCTURE = "INFRASTRUCTURE"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_RUN = "NOT_RUN"

    @property
    def as_before(self) -> bool:
        """Whether base is so as well, by all that was seen, so that it is not this change's."""
        return self in BOTH_FAIL or self in (Verdict.HAZARD, Verdict.UNSUPPORTED)


EXIT_CODES: dict[Verdict, Exit] = {
    Verdict.IDENTICAL: Exit.OK,
    Verdict.GENERATED_CODE_IDENTICAL: Exit.OK,
    Verdict.CHANGED_WITHIN_BOUND: Exit.OK,
    Verdict.DRIFT: Exit.REGRESSION,
    Verdict.REGRESSION: Exit.REGRESSION,
    Verdict.PRE_EXISTING: Exit.OK,
    Verdict.PRE_EXISTING_CHANGED: Exit.OK,
    Verdict.NEW_TEST_BASE_CAUSE: Exit.OK,
    Verdict.NEW_CAPABILITY: Exit.OK,
    Verdict.LOST_CAPABILITY: Exit.REGRESSION,
    Verdict.FIXED: Exit.OK,
    Verdict.NONDETERMINISTIC: Exit.INCONCLUSIVE,
    Verdict.HAZARD: Exit.OK,
    Verdict.TIERS_DISAGREE: Exit.INCONCLUSIVE,
    Verdict.UNSUPPORTED: Exit.OK,
    Verdict.INFRASTRUCTURE: Exit.INCONCLUSIVE,
    Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
    Verdict.NOT_RUN: Exit.INCONCLUSIVE,
}

BOTH_FAIL = {
    Verdict.PRE_EXISTING,
    Verdict.PRE_EXISTING_CHANGED,
    Verdict.NEW_TEST_BASE_CAUSE,
}


@dataclass(frozen=True)
class Judgement:
    """One verdict on one case; a case with several failures has several.

    ``evidence`` is the id of another case that shows why a failure is not the change's, and
    ``headroom`` the share of the bound used in base and in head, by tensor.  ``size`` is the rank
    of a failure's band, ``known`` the reason and the address of a known issue.
    """

    verdict: Verdict
    op: str
    case_id: str
    signature: str = ""
    family: str = ""
    sentence: str = ""
    evidence: str = ""
    headroom: dict[str, tuple[float, float]] = field(default_factory=dict)
    size: int = 0
    known: str = ""

    @property
    def counted(self) -> Verdict:
        """The verdict as the exit code counts it: somebody has answered for a known failure."""
        return Verdict.PRE_EXISTING if self.known else self.verdict


def alone(arm: str) -> str:
    """How the family of a hazard ends that this arm alone shows, though both came to it."""
    return f" | {arm} only"


def exit_code(verdicts: Iterable[Verdict]) -> Exit:
    """The exit code of a comparison: a regression outranks every doubt, a doubt every pass."""
    found = set(verdicts) - {Verdict.HAZARD}  # said beside another verdict on the same case
    if found <= {Verdict.UNSUPPORTED}:
        return Exit.NOTHING_COMPARED
    if found <= {Verdict.UNSUPPORTED, *BOTH_FAIL}:
        return Exit.INCONCLUSIVE  # no case passes in head: there is nothing that could get worse
    codes = {EXIT_CODES[verdict] for verdict in found}
    return next(code for code in (Exit.REGRESSION, Exit.INCONCLUSIVE, Exit.OK) if code in codes)
