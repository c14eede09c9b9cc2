"""Every line that a fix added, and what became of it: stands, moved, edited or lost.

Pure: it works on two diffs, the fix against its parent and the target against the fix.  A line of
the fix stands if the second diff leaves it alone.  Each line of the target answers for one line of
the fix only, so of two equal lines one cannot stand for both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from .diff import FileDiff

STANDS, MOVED, EDITED, LOST, CAME_BACK = "stands", "moved", "edited", "lost", "came back"
TRIVIAL = frozenset("()[]{}<>,;: \t\f\v")
SIMILAR = 0.6  # the cutoff that difflib.get_close_matches has by default
CANDIDATES = 100  # new lines around a place that may be the edited form of its line


@dataclass(frozen=True)
class Spot:
    """A line of text and where it stands; ``line`` counts from 1, 0 stands for a whole file."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Fate:
    """A line of the fix and the line of the target that answers for it, if any."""

    state: str
    fix: Spot
    now: Spot | None = None
    similarity: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def fates(fix: list[FileDiff], since: list[FileDiff]) -> list[Fate]:
    """What became of each line that ``fix`` added, then the removed lines that came back.

    ``since`` is the diff from the fix to the target.  Blank lines and lone brackets are left out.
    """
    target = {file.old_path: file for file in since}
    fresh = _Fresh(since)
    found: dict[Spot, Fate] = {}
    gone: list[tuple[Spot, Spot]] = []  # a line of the fix, and the place where it should be
    for file in fix:
        if file.binary and file.status != "D":
            found |= _whole_file(file, target.get(file.new_path))
        for spot in _spots(file.new_path, ((h.new_start, h.new) for h in file.hunks)):
            place, stands = _place(spot, target.get(spot.path))
            if stands:
                found[spot] = Fate(STANDS, spot, place)
            else:
                found[spot] = Fate(LOST, spot)
                gone.append((spot, place))
    found |= _moved(gone, fresh)
    back = _came_back(fix, target, fresh)
    found |= _edited([pair for pair in gone if found[pair[0]].state == LOST], fresh)
    return [*found.values(), *back]


class _Fresh:
    """The lines of the target that the fix does not have; each is given away once."""

    def __init__(self, since: list[FileDiff]) -> None:
        self.taken: set[Spot] = set()
        self.by_path: dict[str, list[Spot]] = {}
        self.by_text: dict[str, list[Spot]] = {}
        for file in since:
            for spot in _spots(file.new_path, ((h.new_start, h.new) for h in file.hunks)):
                self.by_path.setdefault(spot.path, []).append(spot)
                self.by_text.setdefault(spot.text, []).append(spot)

    def take(self, spot: Spot) -> Spot:
        """Give a line away."""
        self.taken.add(spot)
        return spot

    def same(self, text: str, place: Spot) -> Spot | None:
        """The line of this text that is nearest to a place, in its file first."""
        free = (spot for spot in self.by_text.get(text, ()) if spot not in self.taken)
        return min(free, key=lambda spot: _distance(spot, place), default=None)

    def near(self, place: Spot) -> list[Spot]:
        """The lines of a file around a place."""
        lines = self.by_path.get(place.path, [])
        middle = bisect_left(lines, place.line, key=lambda spot: spot.line)
        around = lines[max(0, middle - CANDIDATES // 2) : middle + CANDIDATES // 2]
        return [spot for spot in around if spot not in self.taken]


def _distance(spot: Spot, place: Spot) -> tuple[bool, int]:
    return spot.path != place.path, abs(spot.line - place.line)


def _spots(path: str, blocks: Iterable[tuple[int, tuple[str, ...]]]) -> list[Spot]:
    return [
        Spot(path, start + offset, text)
        for start, lines in blocks
        for offset, text in enumerate(lines)
        if not set(text) <= TRIVIAL
    ]


def _whole_file(file: FileDiff, since: FileDiff | None) -> dict[Spot, Fate]:
    """A binary file has no lines: it stands if not a byte of it changed."""
    spot = Spot(file.new_path, 0, "(binary file)")
    if since is None or (since.status in "RC" and not since.hunks and not since.binary):
        now = Spot(since.new_path if since else file.new_path, 0, spot.text)
        return {spot: Fate(STANDS, spot, now)}
    if since.status == "D":
        return {spot: Fate(LOST, spot)}
    return {spot: Fate(EDITED, spot, Spot(since.new_path, 0, "(other bytes)"))}


def _place(spot: Spot, since: FileDiff | None) -> tuple[Spot, bool]:
    """Where a line of the fix is in the target, or where it was, and whether it still stands."""
    if since is None:
        return spot, True
    index = bisect_right(since.hunks, spot.line, key=lambda hunk: hunk.old_start) - 1
    if index < 0:  # before the first change
        return Spot(since.new_path, spot.line, spot.text), not since.binary
    hunk = since.hunks[index]
    offset = spot.line - hunk.old_start
    if offset < len(hunk.old):
        return Spot(since.new_path, hunk.new_start + offset, spot.text), False
    line = hunk.new_start + len(hunk.new) + offset - len(hunk.old)
    return Spot(since.new_path, line, spot.text), True


def _moved(gone: list[tuple[Spot, Spot]], fresh: _Fresh) -> dict[Spot, Fate]:
    found = {}
    for spot, place in gone:
        now = fresh.same(spot.text, place)
        if now is not None:
            found[spot] = Fate(MOVED, spot, fresh.take(now))
    return found


def _came_back(fix: list[FileDiff], target: dict[str, FileDiff], fresh: _Fresh) -> list[Fate]:
    """Lines that the fix removed and that stand in the same file of the target again."""
    found = []
    for file in fix:
        since = target.get(file.new_path)
        path = since.new_path if since else file.new_path
        for spot in _spots(file.old_path, ((hunk.old_start, hunk.old) for hunk in file.hunks)):
            now = fresh.same(spot.text, Spot(path, spot.line, ""))
            if now is not None and now.path == path:
                found.append(Fate(CAME_BACK, spot, fresh.take(now)))
    return found


def _edited(gone: list[tuple[Spot, Spot]], fresh: _Fresh) -> dict[Spot, Fate]:
    """Pairs of a lost line and a similar new line of the same file, the most similar first."""
    pairs = []
    for spot, place in gone:
        matcher = SequenceMatcher(None, autojunk=False)
        matcher.set_seq2(spot.text.strip())
        for now in fresh.near(place):
            matcher.set_seq1(now.text.strip())
            if matcher.quick_ratio() >= SIMILAR and matcher.ratio() >= SIMILAR:
                pairs.append((-matcher.ratio(), abs(now.line - place.line), spot, now))
    found: dict[Spot, Fate] = {}
    taken: set[Spot] = set()
    for ratio, _, spot, now in sorted(pairs, key=lambda pair: pair[:2]):
        if spot not in found and now not in taken:
            taken.add(now)
            found[spot] = Fate(EDITED, spot, now, -ratio)
    return found
