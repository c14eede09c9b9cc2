"""How much a launch moved between memory and each of its tensors."""

from __future__ import annotations

import numpy as np

from .access import EVERY, Access
from .findings import Traffic
from .launch import Launch


def traffic(launch: Launch) -> list[Traffic]:
    """One entry for each tensor argument that the launch read or wrote; atomics do both."""
    programs = int(np.prod(launch.grid))
    entries = []
    for name, argument in launch.arguments.items():
        mine = [access for access in launch.accesses() if access.argument.name == name]
        loads = [access for access in mine if access.operation != "store"]
        stores = [access for access in mine if access.operation != "load"]
        if mine:
            moved = (*_moved(loads), *_moved(stores))
            entries.append(Traffic(launch.kernel, name, programs, *moved, argument.owner))
    return entries


def _moved(accesses: list[Access]) -> tuple[int, int, int]:
    """Operations summed over programs, bytes, and bytes with each address counted once."""
    if not accesses:
        return 0, 0, 0
    start, count = accesses[0].argument.storage
    seen = np.zeros(count, bool)
    for access in accesses:
        seen[access.address.astype(np.int64) - start] = True
    distinct = int(seen.sum()) * accesses[0].size
    total = sum(access.size * _lanes(access) for access in accesses)
    return sum(access.programs for access in accesses), total, distinct


def _lanes(access: Access) -> int:
    """Lanes summed over programs; lanes that all programs share are in the arrays once."""
    shared = int((access.program == EVERY).sum())
    return len(access.address) + shared * (access.programs - 1)
