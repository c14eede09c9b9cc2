"""Memory that writes down every access, keeps stray lanes from happening, and judges a launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from .access import ATOMIC, EVERY, Access, Barrier, Stray, source_line
from .analysis import never_written, strays, unwritten
from .arguments import Argument, Owner, Owners
from .conflicts import conflicts
from .engine import ENGINE
from .findings import MemoryFinding, Traffic
from .fresh import FreshMemory
from .launch import Launch
from .memory import Array, Call, Memory, Operation
from .traffic import traffic
from .warps import across_warps


@dataclass
class Trace:
    """What happened within `trace()`: faults, bytes moved, and what could not be watched.

    `started` counts all launches, `launches` those that were watched to their end.
    `unchecked` counts lanes through pointers that belong to no tensor argument, `unwatched`
    the programs that had to run outside, by kernel and reason.
    """

    findings: list[MemoryFinding] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    started: int = 0
    launches: int = 0
    unchecked: int = 0
    unwatched: Counter[tuple[str, str]] = field(default_factory=Counter)


def _nobody(tensor: torch.Tensor) -> Owner | None:
    return None


@contextmanager
def trace(owners: Owners = _nobody) -> Iterator[Trace]:
    """Watch every launch within this context; the result is complete when it ends.

    `owners` names the tensor that the memory behind a kernel's argument belongs to, where it is
    known better than from the argument itself, which may be a slice of it.

    Lanes that would leave the storage of their tensor and its guards are masked off: such a load
    gives its `other` value or 0, such a store nothing, so the process lives.

    What a launch reads before anything wrote it, and what launches leave unwritten, is known for
    memory that torch allocates within the context (`torch.empty` and its relatives).
    """
    result, fresh = Trace(), FreshMemory()
    before, ENGINE.memory = ENGINE.memory, TracedMemory(result, fresh, owners)
    try:
        with fresh:
            yield result
    finally:
        ENGINE.memory = before
    result.findings += unwritten(fresh)


class TracedMemory(Memory):
    """Memory that records what every program does, launch by launch."""

    traces = True

    def __init__(self, result: Trace, fresh: FreshMemory, owners: Owners) -> None:
        super().__init__()
        self._result, self._fresh, self._owners = result, fresh, owners
        self._tried: list[Access | Barrier | Stray] = []

    def launch(self, call: Call) -> None:
        super().launch(call)
        self._result.started += 1
        known = call.tensors.items()
        arguments = {name: Argument.of(name, one, self._owners) for name, one in known}
        self._launch = Launch(call, arguments)

    def begin(self, programs: Array) -> None:
        super().begin(programs)
        self._tried.clear()
        self._programs = self._launch.numbers(programs)

    def undo(self) -> None:
        super().undo()
        self._tried.clear()

    def commit(self) -> None:
        super().commit()
        self._launch.batches.append(list(self._tried))

    def finish(self) -> None:
        launch, found = self._launch, self._result.findings
        found += strays(launch) + never_written(launch, self._fresh)
        met = conflicts(launch)
        found += met + across_warps(launch, met)
        self._result.traffic += traffic(launch)
        self._result.launches += 1

    def alone(self, reason: str) -> None:
        self._result.unwatched[self._launch.kernel, reason] += 1

    def barrier(self) -> None:
        self._tried.append(Barrier())

    def _admit(
        self, operation: Operation, addresses: Array, mask: Array, size: int, argument: str | None
    ) -> Array:
        """Record an operation; the mask without the lanes that leave the memory."""
        inside, unknown = np.zeros(mask.shape, bool), mask
        for target, lanes in self._targets(addresses, mask, argument):
            inside |= self._lanes(operation, target, addresses, lanes, size)
            unknown = unknown & ~lanes
        self._result.unchecked += int(unknown.sum())
        return np.asarray(inside | unknown)

    def _targets(
        self, addresses: Array, mask: Array, argument: str | None
    ) -> list[tuple[Argument, Array]]:
        """Tensors and the lanes that mean them: the origin of the pointer, or where it points."""
        if argument is not None:
            return [(self._launch.arguments[argument], mask)]
        storages = {one.storage: one for one in self._launch.arguments.values()}
        owners = ((one, mask & one.in_memory(addresses)) for one in storages.values())
        return [(one, lanes) for one, lanes in owners if lanes.any()]

    def _lanes(
        self, operation: Operation, target: Argument, addresses: Array, mask: Array, size: int
    ) -> Array:
        """Record what lanes do to one tensor; those of them that stay in its memory."""
        line, verb = source_line(), "read" if operation == "load" else "write"
        inside = mask & target.in_storage(addresses)
        own = inside & target.in_view(addresses)
        near = inside & target.in_reach(addresses)
        self._stray(f"{verb}_out_of_storage", target, line, addresses, mask & ~near)
        self._stray(f"{verb}_out_of_view", target, line, addresses, near & ~own)
        self._record(operation, target, line, size, addresses, inside)
        return np.asarray(mask & target.in_memory(addresses))

    def _stray(
        self, kind: str, target: Argument, line: str, addresses: Array, lanes: Array
    ) -> None:
        if lanes.any():
            first = np.unravel_index(int(np.argmax(lanes)), lanes.shape)
            program = int(self._programs[first[0] if len(lanes) > 1 else 0])
            count = int(lanes.sum()) * (len(self._programs) if len(lanes) == 1 else 1)
            self._tried.append(Stray(kind, target, line, program, int(addresses[first]), count))

    def _record(
        self,
        operation: Operation,
        target: Argument,
        line: str,
        size: int,
        addresses: Array,
        lanes: Array,
    ) -> None:
        tile = addresses.shape[1:]
        count = len(self._programs)
        every = self._programs if len(addresses) == count else np.array([EVERY])
        program = every.reshape(-1, *(1,) * len(tile))
        lane = np.arange(int(np.prod(tile))).reshape(1, *tile) + (self._launch.shape(tile) << 32)
        if operation == "atomic":
            program = np.full_like(program, ATOMIC)
        parts = (np.broadcast_to(part, lanes.shape)[lanes] for part in (addresses, program, lane))
        self._tried.append(Access(operation, target, line, size, count, *parts))
