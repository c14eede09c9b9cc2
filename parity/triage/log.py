"""Report logs: JSON lines of pytest-reportlog, and the journals that :mod:`.plugin` writes.

A journal is a report log with three more kinds of lines, so that one that ends early still tells
which test was running and which were to come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .results import COLLECT, SESSION, Failure, Outcome
from .signature import failure

ENDED_WELL = (0, 1, 5)  # exit statuses of pytest: passed, failed, no tests
OUTSIDE = "(session)"  # the id of what happens outside any test


@dataclass
class Session:
    """One pytest process: what it reported, and how far it came."""

    rank: int | None = None
    world: int = 1
    status: int | None = None  # exit status; None: it never ended
    rootdir: str = ""
    collected: list[str] = field(default_factory=list)
    running: dict[str, None] = field(default_factory=dict)  # in the order of their starts
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank, or nothing where there is only one process."""
        return () if self.rank is None or self.world == 1 else (self.rank,)

    def not_run(self) -> list[str]:
        """The collected tests without an outcome."""
        told = {outcome.id for outcome in self.outcomes}
        return [name for name in self.collected if name not in told]


def read_log(path: Path) -> Session:
    """The session that a report log tells of.

    Raises:
        ValueError: a line is no JSON object, or the file is not a report log.
    """
    session, known = Session(), False
    for number, entry in _entries(path):
        kind = entry.get("$report_type") if isinstance(entry, dict) else None
        if not isinstance(kind, str):
            raise ValueError(
                f"Expected a report log in {path} but line {number} has no $report_type; "
                "write the file with pytest --report-log."
            )
        try:
            known |= _take(session, kind, entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"Expected a {kind} as pytest-reportlog writes it in {path}, line {number}, but it "
                f"lacks or misuses {error}; write the file with pytest --report-log."
            ) from error
    if not known:
        raise ValueError(f"Expected a report log in {path} but it holds no session and no report.")
    return session


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON lines; a last one that a crash cut off is passed over."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                if not line.endswith("\n"):
                    return
                raise ValueError(
                    f"Expected JSON lines in {path} but line {number} is none; "
                    "write the file with pytest --report-log."
                ) from error


def _take(session: Session, kind: str, entry: dict[str, Any]) -> bool:
    """Add one line to the session; False if it says nothing about tests."""
    if kind == "SessionStart":
        rank = entry.get("rank")
        session.rank, session.world = (
            None if rank is None else int(rank),
            int(entry.get("world", 1)),
        )
    elif kind == "Collected":
        session.collected, session.rootdir = [*map(str, entry["ids"])], str(entry["rootdir"])
    elif kind == "TestStart":
        session.running[str(entry["nodeid"])] = None
    elif kind == "SessionFinish":
        session.status = int(entry["exitstatus"])
    elif kind in ("TestReport", "SubTestReport", "CollectReport"):
        _report(session, entry, COLLECT if kind == "CollectReport" else str(entry["when"]))
    else:
        return False
    return True


def _report(session: Session, entry: dict[str, Any], phase: str) -> None:
    name, outcome = str(entry["nodeid"]), entry["outcome"]
    if phase == "teardown":
        session.running.pop(name, None)
    if outcome == "failed":
        failed = replace(_failure(name, entry, phase), ranks=session.ranks)
        session.outcomes.append(Outcome(name, "failed", (failed,)))
    elif outcome == "skipped" and phase != COLLECT:
        session.outcomes.append(Outcome(name, "skipped"))
    elif outcome == "passed" and phase == "call":
        session.outcomes.append(Outcome(name, "passed"))


def _failure(name: str, entry: dict[str, Any], phase: str) -> Failure:
    told = entry.get("longrepr")
    if isinstance(told, dict):
        message = str((told.get("reprcrash") or {}).get("message", ""))
        return failure(name, message, _printed(told), phase)
    return failure(name, str(entry.get("message") or ""), str(told or ""), phase)


def _printed(told: dict[str, Any]) -> str:
    """The traceback of the last exception, as pytest prints it."""
    lines: list[str] = []
    for item in told["reprtraceback"]["reprentries"]:
        data = item["data"]
        lines += data["lines"]
        located = data.get("reprfileloc")
        if located:
            end = f" {located['message']}" if located["message"] else ""
            lines.append(f"{located['path']}:{located['lineno']}:{end or ' '}")
    return "\n".join(lines)


def outcomes(session: Session, *, stopped: str | None = None, late: bool = False) -> list[Outcome]:
    """The outcome of every test that a session collected, and of the session itself if it broke.

    ``stopped`` is the frame in which the process was told to end (None: nobody told it), ``late``
    says that this was at the deadline and not because another rank had died.
    """
    if session.status in ENDED_WELL or (stopped is not None and not late):
        broken: list[Outcome] = []
    elif session.status is not None:
        broken = [_broken(session, OUTSIDE, f"pytest ended with exit status {session.status}")]
    elif late:
        broken = _ended(session, "still running at the deadline", stopped or "")
    else:
        broken = _ended(session, "the process died", "")
    named = {outcome.id for outcome in broken}
    waiting = [Outcome(name, "not_run") for name in session.not_run() if name not in named]
    return [*session.outcomes, *broken, *waiting]


def _ended(session: Session, kind: str, place: str) -> list[Outcome]:
    if session.running:
        return [_broken(session, name, f"{kind} in this test", place) for name in session.running]
    return [_broken(session, OUTSIDE, f"{kind} outside any test", place)]


def _broken(session: Session, name: str, kind: str, place: str = "") -> Outcome:
    phase = SESSION if name == OUTSIDE else "call"
    failed = Failure(kind, place, kind, phase=phase)
    return Outcome(name, "failed", (replace(failed, ranks=session.ranks),))
