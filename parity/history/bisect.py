"""The first commit that shows a failure: its case runs in worktrees that halve the suspects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import git
from ..arms import revision
from ..case import Case
from ..git import Refused
from ..isolation import Worker, share_out, workers
from ..judging import findings_of
from ..record import Record
from ..verdict import Exit
from .night import Failure
from .search import ANSWERS

Say = Callable[[str], None]
WORDS = {True: "fails", False: "passes", None: "cannot run this case"}


@dataclass(frozen=True)
class Culprit:
    """``commits`` holds the first bad commit, or all that may be it where some cannot run."""

    commits: tuple[str, ...]
    tried: int


@dataclass
class Bisection:
    """Asks one case of commit after commit whether a failure is there."""

    project: Path
    ops: str | None
    failure: Failure
    scratch: Path
    say: Say
    tried: int = 0

    def first_bad(self, good: str, bad: str) -> Culprit:
        """The first commit after ``good`` and up to ``bad`` that shows the failure.

        Raises:
            Refused: the two commits do not answer as a bisection needs, or have nothing between.
        """
        top = git.top_level(self.project)
        self._require(bad, True, "the first night that shows it")
        self._require(good, False, "the good commit")
        known, skipped = [good], set[str]()
        while True:
            listed = git.suspects(top, bad, known)
            left = [commit for commit in listed if commit != bad and commit not in skipped]
            if not left:
                return Culprit(tuple(c for c in listed if c == bad or c in skipped), self.tried)
            answer = self.shows(left[0])
            if answer is None:
                skipped.add(left[0])
            elif answer:
                bad = left[0]
            else:
                known.append(left[0])

    def _require(self, commit: str, wanted: bool, what: str) -> None:
        answer = self.shows(commit)
        if answer is not wanted:
            expected = "fail" if wanted else "pass"
            advice = "it may come and go" if wanted else "name an older commit with --good"
            raise Refused(
                f"Expected the case of this failure to {expected} at {commit[:12]}, {what}, but it "
                f"{WORDS[answer]}; {advice}.",
                Exit.INCONCLUSIVE,
            )

    def shows(self, commit: str) -> bool | None:
        """Whether a commit shows the failure; None where its case gives no answer."""
        self.tried += 1
        with revision(self.project, commit) as arm:
            logs = self.scratch / commit[:12]
            logs.mkdir(parents=True, exist_ok=True)
            with workers([arm], self.scratch / "triton", logs) as (worker,):
                record = self._record(worker)
        answer = self._answer(record)
        self.say(f"{commit[:12]} {WORDS[answer]}")
        return answer

    def _answer(self, record: Record | None) -> bool | None:
        """A commit that raises something else may hide the failure, so it gives no answer."""
        if record is None or record.status not in ANSWERS:
            return None
        findings = findings_of(record)
        if any(finding.family == self.failure.family for finding in findings):
            return True
        return None if any(finding.check == "runs" for finding in findings) else False

    def _record(self, worker: Worker) -> Record | None:
        case = Case.from_dict(json.loads(self.failure.case))
        try:
            specs = {spec.name: spec for spec in worker.specs(self.ops).result()}
        except ValueError:
            return None  # contracts that do not import
        if case.op not in specs:
            return None
        found: list[Record] = []
        share_out([worker], [(specs[case.op], case)], lambda case: None, found.append)
        return found[0]
