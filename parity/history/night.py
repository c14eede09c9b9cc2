"""One night of one machine: what ran, what failed, how much of its bounds it used, what it cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ..record import BANDS

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Total:
    """The fixed cases of one op: how many were ``planned``, ``ran``, are ``unsupported``.

    ``plan`` is the digest of their ids: nights with the same one ran the same cases.
    """

    op: str
    planned: int
    ran: int
    unsupported: int
    plan: str

    @property
    def complete(self) -> bool:
        """Whether every fixed case gave an answer, so that a missing failure is an absent one."""
        return self.ran + self.unsupported >= self.planned


@dataclass(frozen=True)
class Failure:
    """A family of failures of one op: not its size and place, which move with the case.

    ``cases`` counts the fixed cases that show it, 0 where only others do; ``band`` is the largest
    size in them.  ``case`` is the simplest case that shows it, as JSON.
    """

    op: str
    family: str
    band: str
    signature: str
    sentence: str
    case_id: str
    case: str
    cases: int

    @property
    def key(self) -> Key:
        """What two nights compare."""
        return (self.op, self.family)


Key = tuple[str, str]


@dataclass(frozen=True)
class Passed:
    """A failure of an earlier night whose case ran again and did not show it."""

    op: str
    family: str


@dataclass(frozen=True)
class Measure:
    """A number to watch; ``of`` is headroom, cost or time."""

    op: str
    of: str
    name: str
    value: float


@dataclass(frozen=True)
class Missing:
    """Cases, or all of something, that did not run, and why."""

    op: str
    reason: str
    count: int


Row = Total | Failure | Passed | Measure | Missing
KINDS: dict[str, type[Row]] = {
    "total": Total,
    "failure": Failure,
    "passed": Passed,
    "measure": Measure,
    "missing": Missing,
}


@dataclass(frozen=True)
class Night:
    """``number`` counts the nights of a machine, so that a wrong clock changes no order.

    ``id`` is that of the run, ``started`` its time in UTC (ISO 8601), ``tier`` interpreter or gpu.
    """

    id: str
    machine: str
    number: int
    started: str
    tier: str
    versions: str
    commit: str
    ops: str
    rows: tuple[Row, ...] = ()

    @property
    def series(self) -> tuple[str, str, str]:
        """Nights that can be compared with each other."""
        return (self.machine, self.tier, self.ops)

    @property
    def order(self) -> tuple[int, str, str]:
        """Sorts the nights of a machine; two at once have one number and are told apart by time."""
        return (self.number, self.started, self.id)

    def totals(self) -> dict[str, Total]:
        """The fixed cases by op."""
        return {row.op: row for row in self.rows if isinstance(row, Total)}

    def failures(self) -> dict[Key, Failure]:
        """What failed, by key."""
        return {row.key: row for row in self.rows if isinstance(row, Failure)}

    def passed(self) -> set[Key]:
        """The failures of earlier nights that are not there any more."""
        return {(row.op, row.family) for row in self.rows if isinstance(row, Passed)}

    def measures(self) -> dict[tuple[str, str, str], float]:
        """The numbers to watch, by op, what they are of, and name."""
        return {(r.op, r.of, r.name): r.value for r in self.rows if isinstance(r, Measure)}

    def missing(self) -> Iterator[Missing]:
        """What did not run."""
        return (row for row in self.rows if isinstance(row, Missing))

    @property
    def complete(self) -> bool:
        """Whether every fixed case of every op gave an answer."""
        totals = self.totals().values()
        return bool(totals) and all(total.complete for total in totals)

    @property
    def green(self) -> bool:
        """Whether everything ran and nothing failed."""
        return self.complete and not self.failures()


def rank(band: str) -> int:
    """How large a band is, as the gate counts it."""
    return BANDS.get(band, 0)


def name_of(key: Key) -> str:
    """Eight hex digits to call a failure by on a command line."""
    return hashlib.sha256("\n".join(key).encode()).hexdigest()[:8]


def title_of(key: Key) -> str:
    """A failure in one line."""
    return f"{key[0]}: {key[1]}"
