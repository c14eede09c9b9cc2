"""Judge what programs did to memory that was not theirs, or that nothing had written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .arguments import Argument
from .findings import MemoryFinding
from .fresh import FreshMemory
from .launch import Launch


def strays(launch: Launch) -> list[MemoryFinding]:
    """Lanes that left the storage or the view of their tensor: one finding a line and tensor."""
    return merged([launch.stray(lanes) for lanes in launch.strays()])


def never_written(launch: Launch, fresh: FreshMemory) -> list[MemoryFinding]:
    """Reads of fresh memory before any store to it; `fresh` learns what the launch stores."""
    findings = []
    for access in launch.accesses():
        start, _ = access.argument.storage
        written = fresh.written(start)
        if written is None:
            continue
        byte = access.address.astype(np.int64) - start
        missing = ~written[byte] & access.argument.in_view(access.address)
        if access.operation != "store" and missing.any():
            findings.append(launch.finding("read_never_written", access, missing))
        if access.operation != "load":
            fresh.writers[start] = launch.kernel, access.argument.name
            for offset in range(access.size):
                written[byte + offset] = True
    return merged(findings)


def unwritten(fresh: FreshMemory) -> list[MemoryFinding]:
    """Fresh tensors that kernels have written in part only."""
    findings = []
    for start, (kernel, name) in fresh.writers.items():
        if start in fresh.storages:
            written, tensor = fresh.storages[start]
            argument = Argument(name, tensor)
            here = tensor.data_ptr()
            own = written[here - start :: argument.size][: len(argument.view)]
            missing = argument.view & ~own
            if missing.any():
                first = here + int(np.argmax(missing)) * argument.size
                place, count = argument.name_of(first), int(missing.sum())
                kind = "left_unwritten"
                findings.append(MemoryFinding(kind, kernel, "", name, place, (), count))
    return findings


def merged(findings: list[MemoryFinding]) -> list[MemoryFinding]:
    """One finding for each kind, line and tensor: the first, with the lanes of all of them."""
    first: dict[tuple[str, str, str], MemoryFinding] = {}
    for finding in findings:
        key = (finding.kind, finding.line, finding.tensor)
        known = first.get(key)
        if known:
            crossings = known.crossings + finding.crossings
            finding = replace(known, count=known.count + finding.count, crossings=crossings)
        first[key] = finding
    return list(first.values())
