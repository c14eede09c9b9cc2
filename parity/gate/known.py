"""Known issues: failures that somebody has looked at, with a reason, an address and a last day.

``[tool.parity] known_issues = "known_issues.toml"`` names a file of ``[[issue]]`` tables.  An entry
excuses failures of one op and one signature (or family: any size and place); it is never silent.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..given import given_text, settings
from ..verdict import Judgement


@dataclass(frozen=True)
class KnownIssue:
    """One entry; ``expires`` is the last day on which it counts."""

    op: str
    signature: str
    reason: str
    address: str
    expires: datetime.date

    def matches(self, item: Judgement) -> bool:
        """Whether this is the failure of a judgement."""
        return self.op == item.op and self.signature in (item.signature, item.family)


def load(root: Path) -> list[KnownIssue]:
    """The known issues of a project; raises ValueError in one sentence for a file that is none."""
    named = settings(root).get("known_issues")
    if named is None:
        return []
    path = root / str(named)
    try:
        entries = tomllib.loads(given_text(path)).get("issue", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"Expected known issues as TOML in {path} but got {error}; write [[issue]] tables, or "
            "take known_issues out of pyproject.toml."
        ) from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"Expected [[issue]] tables in {path} but got issue = {entries!r}.")
    return [_issue(path, entry) for entry in entries]


def _issue(path: Path, entry: dict[str, Any]) -> KnownIssue:
    names = [item.name for item in fields(KnownIssue)]
    wrong = set(names) ^ set(entry)
    wrong |= {name for name in names if not isinstance(entry.get(name), _kind(name))}
    wrong |= {name for name in names if not entry.get(name)}
    if wrong:
        raise ValueError(
            f"Expected {', '.join(names[:-1])} (texts) and expires (a date) in every [[issue]] of "
            f"{path} but got {', '.join(sorted(wrong))} missing, wrong or unknown."
        )
    return KnownIssue(**entry)


def _kind(name: str) -> type:
    return datetime.date if name == "expires" else str


@dataclass(frozen=True)
class Known:
    """The entries of head, and which of them the change brings: it cannot excuse itself unseen."""

    issues: tuple[KnownIssue, ...] = ()
    new: frozenset[KnownIssue] = frozenset()

    @classmethod
    def compared(cls, base: Iterable[KnownIssue], head: Iterable[KnownIssue]) -> Known:
        """The entries of head; those without their like in base are new."""
        issues = tuple(head)
        return cls(issues, frozenset(issues) - frozenset(base))

    def applied(self, judgements: list[Judgement], today: datetime.date) -> list[Judgement]:
        """The judgements; the known ones with the reason and the address of their entry."""
        valid = [issue for issue in self.issues if issue.expires >= today]
        told = []
        for item in judgements:
            known = next((issue for issue in valid if issue.matches(item)), None)
            told.append(replace(item, known=f"{known.reason} ({known.address})") if known else item)
        return told

    def states(self, judgements: list[Judgement], today: datetime.date) -> list[dict[str, Any]]:
        """Every entry as plain JSON values; ``stale`` is one that nothing matches."""
        return [
            {
                **{item.name: str(getattr(issue, item.name)) for item in fields(issue)},
                "state": self._state(issue, judgements, today),
                "new": issue in self.new,
            }
            for issue in self.issues
        ]

    def _state(self, issue: KnownIssue, judgements: list[Judgement], today: datetime.date) -> str:
        if issue.expires < today:
            return "expired"
        return "matched" if any(issue.matches(item) for item in judgements) else "stale"
