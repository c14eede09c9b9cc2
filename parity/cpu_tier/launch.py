"""One traced launch: its tensors, its grid, and what its programs did, batch after batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .access import EVERY, Access, Barrier, Stray
from .arguments import Argument
from .findings import MemoryFinding
from .memory import Array, Call


@dataclass
class Launch:
    """A call and what its tensor arguments mean; `batches` fill as it runs."""

    call: Call
    arguments: dict[str, Argument]
    batches: list[list[Access | Barrier | Stray]] = field(default_factory=list)
    _shapes: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.call.kernel

    @property
    def grid(self) -> tuple[int, ...]:
        """How many programs, `(x, y, z)`."""
        return self.call.grid

    def numbers(self, programs: Array) -> Array:
        """Programs `[P, 3]` as numbers `[P]`, in the order of the grid."""
        return np.asarray(np.ravel_multi_index(tuple(programs.T), self.grid))

    def shape(self, tile: tuple[int, ...]) -> int:
        """A number for each shape of tile, so that lanes of different shapes differ."""
        return self._shapes.setdefault(tile, len(self._shapes))

    def tile(self, lane: int) -> tuple[int, ...]:
        """The shape of the tile that a lane, as `Access.lane` counts them, belongs to."""
        return next(tile for tile, number in self._shapes.items() if number == lane >> 32)

    def who(self, number: int) -> str:
        """A program for people."""
        return f"program {self._program(number)}" if number >= 0 else "another program"

    def accesses(self) -> Iterator[Access]:
        """Every access, in order."""
        for batch in self.batches:
            yield from (event for event in batch if isinstance(event, Access))

    def strays(self) -> Iterator[Stray]:
        """Every group of stray lanes, in order."""
        for batch in self.batches:
            yield from (event for event in batch if isinstance(event, Stray))

    def stray(self, lanes: Stray) -> MemoryFinding:
        """The finding of a group of stray lanes."""
        return self._found(
            lanes.kind, lanes.argument, lanes.line, lanes.address, lanes.program, lanes.count
        )

    def finding(self, kind: str, access: Access, lanes: Array, other: str = "") -> MemoryFinding:
        """The finding of those lanes `[n]` of an access: the first of them, and their number."""
        lane = int(np.argmax(lanes))
        where, who = int(access.address[lane]), int(access.program[lane])
        count = int(lanes.sum())
        return self._found(kind, access.argument, access.line, where, who, count, other)

    def _found(
        self,
        kind: str,
        argument: Argument,
        line: str,
        address: int,
        program: int,
        count: int,
        other: str = "",
    ) -> MemoryFinding:
        place, who = argument.name_of(address), self._program(program)
        return MemoryFinding(
            kind, self.kernel, line, argument.name, place, who, count, other, argument.owner
        )

    def _program(self, number: int) -> tuple[int, ...]:
        """The grid index of a program; of lanes that all programs share, the first one's."""
        number = 0 if number == EVERY else number
        index = np.unravel_index(number, self.grid) if number >= 0 else ()
        return tuple(int(part) for part in index)
