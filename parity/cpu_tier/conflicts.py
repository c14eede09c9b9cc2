"""Two programs at one address, and two lanes of one program that no barrier keeps apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .access import EVERY, Access, Barrier
from .analysis import merged
from .findings import MemoryFinding
from .launch import Launch
from .memory import Array

NOBODY = -1


def conflicts(launch: Launch) -> list[MemoryFinding]:
    """Conflicts between programs and hazards within one, in every storage that is written."""
    findings: list[MemoryFinding] = []
    stored = {access.argument.storage for access in launch.accesses() if access.operation != "load"}
    for storage in sorted(stored):
        findings += _Storage(launch, *storage).judge()
    return merged(findings)


class _Storage:
    """Follows one storage through a launch; a unit is the smallest element that touches it."""

    def __init__(self, launch: Launch, start: int, count: int) -> None:
        self._launch, self._place = launch, (start, count)
        self._accesses = [a for a in launch.accesses() if a.argument.storage == self._place]
        self._unit = min(access.size for access in self._accesses)
        units = -(-count // self._unit)
        self._writer = np.full(units, NOBODY, np.int32)  # program that wrote; EVERY: several
        self._reader = np.full(units, NOBODY, np.int32)
        self._lane = np.full(units, NOBODY, np.int64)  # that read since the last barrier
        self._read_by = np.zeros(units, np.int32)  # number of the access that it was
        self._dirty: list[Array] = []
        self._findings: list[MemoryFinding] = []

    def judge(self) -> list[MemoryFinding]:
        """All conflicts and hazards of this storage."""
        number = {id(access): index for index, access in enumerate(self._accesses)}
        for batch in self._launch.batches:
            self._synchronise()
            for event in batch:
                if isinstance(event, Barrier):
                    self._synchronise()
                elif id(event) in number and isinstance(event, Access):
                    self._see(event, number[id(event)])
        return self._findings

    def _synchronise(self) -> None:
        """All lanes have read what they wanted: nothing stored from here on can be too early."""
        for units in self._dirty:
            self._lane[units] = NOBODY
        self._dirty.clear()

    def _see(self, access: Access, number: int) -> None:
        for units in self._units(access):
            if access.operation == "load":
                self._conflict("read_write", access, units, self._writer)
                self._mark(self._reader, units, access)
                self._read(access, number, units)
            else:
                self._conflict("write_write", access, units, self._writer)
                self._conflict("write_read", access, units, self._reader)
                self._hazard(access, units)
                together = self._mark(self._writer, units, access)
                self._report("write_write", access, together, "another program")

    def _units(self, access: Access) -> Iterator[Array]:
        first = (access.address.astype(np.int64) - self._place[0]) // self._unit
        yield from (first + more for more in range(access.size // self._unit))

    def _conflict(self, kind: str, access: Access, units: Array, visitor: Array) -> None:
        """Another program was here before."""
        before = visitor[units]
        lanes = (before != NOBODY) & ((before != access.program) | (before == EVERY))
        if lanes.any():
            other = self._launch.who(int(before[np.argmax(lanes)]))
            self._report(kind, access, lanes, other)

    def _mark(self, visitor: Array, units: Array, access: Access) -> Array:
        """Note who is here; true for lanes that met another program within this very access."""
        before, program = visitor[units], access.program
        visitor[units] = program
        together = (visitor[units] != program) | (program == EVERY)
        visitor[units[together | ((before != NOBODY) & (before != program))]] = EVERY
        return np.asarray(together)

    def _read(self, access: Access, number: int, units: Array) -> None:
        """Note which lane reads; EVERY where several lanes do."""
        free = self._lane[units] == NOBODY
        self._lane[units[free]] = access.lane[free]
        self._lane[units[self._lane[units] != access.lane]] = EVERY
        self._read_by[units] = number
        self._dirty.append(units)

    def _hazard(self, access: Access, units: Array) -> None:
        """A store to what another lane of the same program reads: warps do not run in step."""
        lane = self._lane[units]
        own = self._reader[units] == access.program
        crossed = own & (lane != NOBODY) & (lane != access.lane) & (access.operation == "store")
        if crossed.any():
            reader = self._accesses[self._read_by[units[np.argmax(crossed)]]]
            self._report("write_after_read", access, crossed, reader.line)

    def _report(self, kind: str, access: Access, lanes: Array, other: str) -> None:
        if lanes.any():
            self._findings.append(self._launch.finding(kind, access, lanes, other))
