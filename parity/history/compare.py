"""A night beside the nights before it: what moved, since which commit, and what was not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from .. import git
from ..git import Refused
from ..verdict import Exit
from .drift import Drift, drifts
from .night import SCHEMA_VERSION, Night, name_of
from .signatures import Change, Moved, moves
from .store import History

# The commits after one and up to another, each in one line; None where git does not know both.
Commits = Callable[[str, str], list[str] | None]
DOUBTS = (Change.FOUND, Change.FLICKERING, Change.NOT_RUN)
WORSE = (Change.NEW, Change.SPREADING)


def commits_of(project: Path) -> Commits:
    """What the repository that holds a project knows; nothing where there is no repository."""
    try:
        return partial(git.commits_between, git.top_level(project))
    except Refused:
        return lambda first, last: None


def compare(
    history: History, night: Night, commits: Commits, *, interrupted: bool = False
) -> dict[str, Any]:
    """What is said about a night that is in the history, as plain JSON values."""
    before = history.before(night)
    moved = moves([*before, night])
    drifted = drifts([*before, night])
    known = {drift.series for drift in drifts(before)} if before else set()
    fresh = [drift for drift in drifted if drift.series not in known]
    code = Exit.INTERRUPTED if interrupted else _exit_code(night, before, moved, fresh)
    green = next((n for n in reversed(before) if n.green), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "night": asdict(night) | {"rows": len(night.rows)},
        "exit_code": int(code),
        "sentence": _sentence(code, night, moved, fresh),
        "totals": [asdict(total) for total in night.totals().values()],
        "last_green": green and since(green, night, commits),
        "compared_with": [n.id for n in before[-7:]],
        "other_cases": _other_cases(before[-1], night) if before else [],
        "failures": [_failure(item, night, commits) for item in moved],
        "drifts": [_drift(item, item not in fresh, commits) for item in drifted],
        "not_run": [asdict(row) for row in night.missing()],
        "skipped": list(history.skipped),
        "clock": _clock([*before, night]),
    }


def _exit_code(
    night: Night, before: Sequence[Night], moved: list[Moved], fresh: list[Drift]
) -> Exit:
    ran = any(total.ran for total in night.totals().values())
    if not ran or not before:
        return Exit.NOTHING_COMPARED
    found = {item.change for item in moved}
    if fresh or found & {*WORSE}:
        return Exit.REGRESSION
    return Exit.INCONCLUSIVE if found & {*DOUBTS} or not night.complete else Exit.OK


def _sentence(code: Exit, night: Night, moved: list[Moved], fresh: list[Drift]) -> str:
    totals = night.totals().values()
    ran = f"{sum(t.ran for t in totals)} of {sum(t.planned for t in totals)} fixed cases ran"
    told = {
        Exit.OK: f"nothing got worse, {ran}",
        Exit.REGRESSION: f"something got worse, {ran}",
        Exit.INTERRUPTED: f"interrupted, {ran}",
        Exit.NOTHING_COMPARED: f"nothing compared, this is the first night of its kind, {ran}",
        Exit.INCONCLUSIVE: f"inconclusive, {ran}",
    }[code]
    counts = [(change, sum(item.change is change for item in moved)) for change in Change] + [
        ("DRIFT", len(fresh))
    ]
    listed = ", ".join(f"{name} {count}" for name, count in counts if count)
    return f"Night {night.number} of {night.machine}: {told}" + (f" ({listed})." if listed else ".")


def since(earlier: Night, later: Night, commits: Commits) -> dict[str, Any]:
    """A stretch between two nights and the commits in it."""
    return {
        "last": earlier.id,
        "last_commit": earlier.commit,
        "first": later.id,
        "first_commit": later.commit,
        "commits": commits(earlier.commit, later.commit),
        "versions": [earlier.versions, later.versions],
    }


def _failure(item: Moved, night: Night, commits: Commits) -> dict[str, Any]:
    failure = item.failure
    return {
        "id": name_of(failure.key),
        "change": str(item.change),
        "op": failure.op,
        "signature": failure.signature,
        "sentence": failure.sentence,
        "cases": failure.cases,
        "shown": item.shown,
        "case": failure.case_id,
        "since": item.last and since(item.last, night, commits),
    }


def _drift(item: Drift, known: bool, commits: Commits) -> dict[str, Any]:
    op, of, name = item.series
    return {
        "op": op,
        "of": of,
        "name": name,
        "before": item.before,
        "after": item.after,
        "known": known,
        "since": since(item.last, item.first, commits),
    }


def _other_cases(earlier: Night, later: Night) -> list[str]:
    """The ops whose fixed cases are not those of the night before, so that numbers begin anew."""
    plans = {op: total.plan for op, total in earlier.totals().items()}
    return [op for op, total in later.totals().items() if plans.get(op, total.plan) != total.plan]


def _clock(nights: Sequence[Night]) -> list[str]:
    """Sentences about nights that say they started before the one before them."""
    return [
        f"Night {later.number} says that it started at {later.started}, before night "
        f"{earlier.number} ({earlier.started}): the clock of {later.machine} went back. Nights are "
        "ordered by their numbers."
        for earlier, later in pairwise(nights)
        if later.started < earlier.started
    ]
