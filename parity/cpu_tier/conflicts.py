"""Two programs at one address, and two lanes of one program that no barrier keeps apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .access import ATOMIC, EVERY, Access, Barrier
from .analysis import merged
from .findings import Crossing, MemoryFinding
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
        self._reads: list[tuple[Access, Array]] = []  # loads since then, and the units they read
        self._findings: list[MemoryFinding] = []

    def judge(self) -> list[MemoryFinding]:
        """All conflicts and hazards of this storage."""
        mine = {id(access) for access in self._accesses}
        for batch in self._launch.batches:
            self._synchronise()
            for event in batch:
                if isinstance(event, Barrier):
                    self._synchronise()
                elif id(event) in mine and isinstance(event, Access):
                    self._see(event)
        return self._findings

    def _synchronise(self) -> None:
        """All lanes have read what they wanted: nothing stored from here on can be too early."""
        for _, units in self._reads:
            self._lane[units] = NOBODY
        self._reads.clear()

    def _see(self, access: Access) -> None:
        for units in self._units(access):
            if access.operation == "load":
                self._conflict("read_write", access, units, self._writer)
                self._mark(self._reader, units, access)
                self._read(access, units)
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

    def _read(self, access: Access, units: Array) -> None:
        """Note which lane reads; EVERY where several lanes do."""
        free = self._lane[units] == NOBODY
        self._lane[units[free]] = access.lane[free]
        self._lane[units[self._lane[units] != access.lane]] = EVERY
        self._reads.append((access, units))

    def _hazard(self, access: Access, units: Array) -> None:
        """A store to what another lane of the same program reads: warps do not run in step."""
        lane = self._lane[units]
        own = self._reader[units] == access.program
        crossed = own & (lane != NOBODY) & (lane != access.lane) & (access.operation == "store")
        if crossed.any():
            pairs = (self._crossing(access, units, crossed, *read) for read in self._reads)
            crossings = tuple(pair for pair in pairs if len(pair.readers))
            finding = self._launch.finding(
                "write_after_read", access, crossed, crossings[0].read_line
            )
            self._findings.append(replace(finding, crossings=crossings))

    def _crossing(
        self, store: Access, stored: Array, crossed: Array, load: Access, loaded: Array
    ) -> Crossing:
        """Every two different lanes of one program of which one stores what the other loads."""
        programs = int(np.prod(self._launch.grid)) - ATOMIC
        read, write = (
            units.astype(np.int64) * programs + access.program
            for units, access in ((loaded, load), (stored, store))
        )
        order, write = np.argsort(read, kind="stable"), write[crossed]
        first, end = (np.searchsorted(read[order], write, side) for side in ("left", "right"))
        count = end - first
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        readers = load.lane[order[np.repeat(first, count) + within]]
        writers = np.repeat(store.lane[crossed], count)
        differ = readers != writers
        pairs = np.unique(np.stack([readers[differ], writers[differ]]), axis=1) & 0xFFFFFFFF
        tile, target = (self._launch.tile(int(access.lane[0])) for access in (load, store))
        return Crossing(load.line, store.line, tile, target, *pairs)

    def _report(self, kind: str, access: Access, lanes: Array, other: str) -> None:
        if lanes.any():
            self._findings.append(self._launch.finding(kind, access, lanes, other))
