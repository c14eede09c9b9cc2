"""Failures from night to night: which are new, which are gone, which come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .night import Failure, Key, Night, rank

WINDOW = 8  # tonight and the seven nights before


class Change(StrEnum):
    """What became of a failure tonight."""

    NEW = "NEW"  # no night of the last seven shows it
    FOUND = "FOUND"  # no earlier night ran a case that could show it: it may be older
    SPREADING = "SPREADING"  # more of the same fixed cases show it than then, or it is larger
    FLICKERING = "FLICKERING"  # it came back, or one and the same code answered both ways
    KNOWN = "KNOWN"
    FIXED = "FIXED"  # the night before shows it
    NOT_RUN = "NOT_RUN"  # the night before shows it, and its case did not run tonight


@dataclass(frozen=True)
class Moved:
    """A failure and its change; ``last`` is the last night that is known not to show it.

    For FIXED and NOT_RUN, ``last`` is the last night that does.  ``shown`` has a letter for each
    night of the window: x failed, . did not, ? did not look.
    """

    change: Change
    failure: Failure
    last: Night | None
    shown: str


def moves(nights: Sequence[Night]) -> list[Moved]:
    """Every failure of the last night and of the seven before it; one series, sorted."""
    window = nights[-WINDOW:]
    examples = {key: failure for night in window for key, failure in night.failures().items()}
    found = (_moved(nights, key, failure) for key, failure in examples.items())
    order = list(Change)
    return sorted((m for m in found if m), key=lambda m: (order.index(m.change), m.failure.key))


def _moved(nights: Sequence[Night], key: Key, failure: Failure) -> Moved | None:
    window = nights[-WINDOW:]
    first = next(night for night in nights if key in night.failures())
    seen = {night.id: shows(night, key, first) for night in window}
    shown = "".join({True: "x", False: ".", None: "?"}[seen[night.id]] for night in window)
    known = [night for night in window if seen[night.id] is not None]
    change = _change(window, key, seen, known)
    if change is None:
        return None
    state = change in (Change.FIXED, Change.NOT_RUN)
    last = next((n for n in reversed(known[: None if state else -1]) if seen[n.id] is state), None)
    return Moved(change, failure, last, shown)


def shows(night: Night, key: Key, first: Night) -> bool | None:
    """Whether a night shows a failure; None where it did not look.

    ``first`` is the first night that shows it: its case is run again in all later ones.  A night
    before that would have shown it if it ran the fixed case that does.
    """
    if key in night.failures():
        return True
    plan = _plan(night, key[0])
    earlier = night.order < first.order and plan and plan == _plan(first, key[0])
    return False if key in night.passed() or (earlier and first.failures()[key].cases) else None


def _change(
    window: Sequence[Night], key: Key, seen: dict[str, bool | None], known: list[Night]
) -> Change | None:
    tonight, states = seen[window[-1].id], [seen[night.id] for night in known]
    if tonight is None:
        return Change.NOT_RUN if states and states[-1] else None
    if _flickers(known, states):
        return Change.FLICKERING
    if not tonight:
        return Change.FIXED if states[-2:-1] == [True] else None
    if True not in states[:-1]:
        return Change.NEW if len(states) > 1 else Change.FOUND
    return Change.SPREADING if _spreads(window, key) else Change.KNOWN


def _flickers(known: list[Night], states: Sequence[bool | None]) -> bool:
    gaps = "".join("x" if state else "." for state in states).strip(".")
    pairs = zip(known, known[1:], states, states[1:], strict=False)
    return "." in gaps or any(_code(a) == _code(b) and p != q for a, b, p, q in pairs)


def _code(night: Night) -> tuple[str, str]:
    return (night.commit, night.versions)


def _spreads(window: Sequence[Night], key: Key) -> bool:
    """More of the same fixed cases show it, or it is larger in them, than on any night before."""
    plan = _plan(window[-1], key[0])
    alike = [n for n in window if key in n.failures() and plan and _plan(n, key[0]) == plan]
    *before, now = [night.failures()[key] for night in alike] or [window[-1].failures()[key]]
    return bool(before) and (
        now.cases > max(item.cases for item in before)
        or rank(now.band) > max(rank(item.band) for item in before)
    )


def _plan(night: Night, op: str) -> str | None:
    total = night.totals().get(op)
    return total.plan if total is not None and total.complete else None
