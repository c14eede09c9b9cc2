"""What programs did to memory, one entry an operation, and where in the source."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import triton

from .arguments import Argument
from .memory import Array, Operation

EVERY = -2  # instead of a program: the lanes of all programs of a batch
ATOMIC = -3  # instead of a program: atomics of different programs do not conflict
_NOT_THE_KERNEL = (str(Path(triton.__file__).parent), str(Path(__file__).parent))


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of a batch, without masked lanes.

    `address` `[n]`, `program` `[n]` (numbers in the grid, or EVERY, or ATOMIC) and `lane` `[n]`
    (position in the tile, lanes of another tile shape never equal) belong together; `size` is the
    bytes of an element, `programs` how many programs ran the operation.
    """

    operation: Operation
    argument: Argument
    line: str
    size: int
    programs: int
    address: Array
    program: Array
    lane: Array


@dataclass(frozen=True)
class Barrier:
    """All lanes of the programs that run waited for each other."""


@dataclass(frozen=True)
class Stray:
    """Lanes that left the storage or the view: `kind` of finding, first address, lane count."""

    kind: str
    argument: Argument
    line: str
    program: int
    address: int
    count: int


def source_line() -> str:
    """`file.py:12` of the innermost line of a kernel or device function that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_KERNEL):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
