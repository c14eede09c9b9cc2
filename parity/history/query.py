"""Questions to a history: when did a failure first appear, and where does it stand?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..git import Refused
from .night import Failure, Key, Night, name_of, title_of
from .signatures import Change, moves, shows


@dataclass(frozen=True)
class Appearance:
    """A failure on one machine: the first night that shows it, the last one, and how many do.

    ``before`` is the last night before the first that looked and did not show it; ``flickers``
    says that some night saw it come and go.
    """

    failure: Failure
    before: Night | None
    first: Night
    last: Night
    count: int
    flickers: bool


def series(nights: Sequence[Night]) -> list[list[Night]]:
    """The nights by machine, tier and contracts, each sorted."""
    found: dict[tuple[str, str, str], list[Night]] = {}
    for night in sorted(nights, key=lambda n: n.order):
        found.setdefault(night.series, []).append(night)
    return [found[name] for name in sorted(found)]


def appearances(nights: Sequence[Night]) -> list[Appearance]:
    """Every failure of a series, in the order of its first night."""
    keys = dict.fromkeys(key for night in nights for key in night.failures())
    unsteady = _flickering(nights)
    return [_appearance(nights, key, key in unsteady) for key in keys]


def _appearance(nights: Sequence[Night], key: Key, flickers: bool) -> Appearance:
    shown = [night for night in nights if key in night.failures()]
    first, last = shown[0], shown[-1]
    earlier = [night for night in nights if night.order < first.order]
    before = next((n for n in reversed(earlier) if shows(n, key, first) is False), None)
    return Appearance(first.failures()[key], before, first, last, len(shown), flickers)


def _flickering(nights: Sequence[Night]) -> set[Key]:
    return {
        moved.failure.key
        for count in range(1, len(nights) + 1)
        for moved in moves(nights[:count])
        if moved.change is Change.FLICKERING
    }


def find(nights: Sequence[Night], wanted: str) -> Key:
    """The one failure whose id, or a part of whose line, this is.

    Raises:
        Refused: there is none, or more than one.
    """
    keys = sorted({key for night in nights for key in night.failures()})
    fitting = [key for key in keys if wanted == name_of(key)]
    fitting = fitting or [key for key in keys if wanted in title_of(key)]
    if len(fitting) == 1:
        return fitting[0]
    listed = "".join(f"\n  {name_of(key)} {title_of(key)}" for key in fitting or keys)
    raise Refused(
        f"Expected one failure that {wanted!r} names but the history has "
        f"{len(fitting) or 'none'}; name one of:{listed or ' (it holds no failure)'}"
    )
