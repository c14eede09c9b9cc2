"""Leases of GPUs: each worker of a session gets one of those that the user's mask shows.

A lease is a lock on a file named by the GPU's UUID, held as long as the process lives, so that
sessions of one user on one machine see each other's and a killed worker leaves none behind.  Where
there are more workers than GPUs they share evenly.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pynvml
from filelock import FileLock, Timeout

MASK = "CUDA_VISIBLE_DEVICES"
OUTER = os.environ.get(MASK)  # as the user gave it: this module is imported before a lease
_held: list[FileLock] = []


def lease() -> str | None:
    """Narrow this process, before it touches CUDA, to a GPU of its own; its UUID, or None."""
    uuids = visible_gpus()
    if not uuids:
        return None
    uuid, lock = take(uuids, Path(tempfile.gettempdir(), f"parity-gpus-{os.getuid()}"))
    _held.append(lock)
    os.environ[MASK] = uuid
    return uuid


def take(uuids: Sequence[str], folder: Path) -> tuple[str, FileLock]:
    """The first GPU of one or more that the fewest processes hold, and the lock that keeps it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    places = ((uuid, f"{uuid.replace('/', '-')}.{n}") for n in count() for uuid in uuids)
    locks = ((uuid, FileLock(folder / place)) for uuid, place in places)
    return next((uuid, lock) for uuid, lock in locks if _acquired(lock))


def _acquired(lock: FileLock) -> bool:
    with suppress(Timeout):
        lock.acquire(blocking=False)
    return lock.is_locked


def driver() -> str | None:
    """The version of the NVIDIA driver; None where none answers."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs under the user's mask; none without a driver, or if the mask is unclear.

    NVML counts GPUs by their place on the bus and CUDA, unless told otherwise, by their speed;
    where these orders may differ, a number in the mask could mean a GPU that is not ours.
    """
    if driver() is None:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    models = {pynvml.nvmlDeviceGetName(handle) for handle in handles}
    by_number = any(entry.strip().isdecimal() for entry in (OUTER or "").split(","))
    if by_number and len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return []
    return shown(OUTER, [pynvml.nvmlDeviceGetUUID(handle) for handle in handles])


def shown(mask: str | None, uuids: Sequence[str]) -> list[str]:
    """The GPUs that CUDA shows under a mask, in its order.

    As in the CUDA programming guide: entries are numbers, UUIDs or their unique beginnings, and MIG
    instances; the first entry that names nothing ends the list, one named twice empties it.
    """
    if mask is None:
        return list(uuids)
    chosen: list[str] = []
    for entry in mask.split(","):
        uuid = _named(entry.strip(), uuids)
        if uuid is None:
            break
        if uuid in chosen:
            return []
        chosen.append(uuid)
    return chosen


def _named(entry: str, uuids: Sequence[str]) -> str | None:
    if entry.startswith("MIG-"):
        return entry
    if entry.isdecimal():
        return uuids[int(entry)] if int(entry) < len(uuids) else None
    found = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None
