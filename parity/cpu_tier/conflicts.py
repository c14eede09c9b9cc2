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


class _Visits:
    """Loads, or stores, since the last barrier, and which lane of a program came to each unit."""

    def __init__(self, units: int) -> None:
        self._lane = np.full(units, NOBODY, np.int64)  # EVERY: several lanes
        self.accesses: list[tuple[Access, Array]] = []

    def clear(self) -> None:
        """A barrier: all lanes have done what they came for."""
        for _, units in self.accesses:
            self._lane[units] = NOBODY
        self.accesses.clear()

    def note(self, access: Access, units: Array) -> None:
        """The lanes of an access come to these units."""
        free = self._lane[units] == NOBODY
        self._lane[units[free]] = access.lane[free]
        self._lane[units[self._lane[units] != access.lane]] = EVERY
        self.accesses.append((access, units))

    def crossed(self, access: Access, units: Array) -> Array:
        """Lanes that come where another lane was."""
        lane = self._lane[units]
        return np.asarray((lane != NOBODY) & (lane != access.lane))


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
        self._loads, self._stores = _Visits(units), _Visits(units)
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
        """All lanes have loaded and stored what they wanted: nothing is too early from here on."""
        self._loads.clear()
        self._stores.clear()

    def _see(self, access: Access) -> None:
        for units in self._units(access):
            if access.operation == "load":
                self._conflict("read_write", access, units, self._writer)
                self._early_load(access, units)
                self._mark(self._reader, units, access)
                self._loads.note(access, units)
            else:
                self._conflict("write_write", access, units, self._writer)
                self._conflict("write_read", access, units, self._reader)
                if access.operation == "store":
                    self._early_store(access, units)
                    self._stores.note(access, units)
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

    def _early_load(self, access: Access, units: Array) -> None:
        """A load of what another lane of the same program stores: warps do not run in step."""
        crossed = self._stores.crossed(access, units) & (self._writer[units] == access.program)
        if crossed.any():
            wanted = units[np.argmax(crossed)]
            stores = (store for store, stored in self._stores.accesses if wanted in stored)
            self._report("read_after_write", access, crossed, next(stores).line)

    def _early_store(self, access: Access, units: Array) -> None:
        """A store to what another lane of the same program loads."""
        crossed = self._loads.crossed(access, units) & (self._reader[units] == access.program)
        if crossed.any():
            pairs = (self._crossing(access, units, crossed, *load) for load in self._loads.accesses)
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
