"""Whether lanes that meet in memory belong to different warps in the code that would be launched.

The position verdict knows tiles only.  Here the launch is compiled for a GPU, in another process,
and its layouts say which warp holds which lane.  Warps run in an order of their own, while the
lanes of one warp load before they store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from ..codegen import layouts
from ..codegen.asking import COMPILER, described
from .findings import Crossing, MemoryFinding
from .launch import Launch

ARCH = "sm_90"


def across_warps(launch: Launch, findings: Iterable[MemoryFinding]) -> list[MemoryFinding]:
    """For each `write_after_read`, the same between warps, where the compiled code has it.

    What cannot be compiled, or has a layout that is not known here, has no such verdict: the
    position verdict stands alone.
    """
    hazards = [finding for finding in findings if finding.crossings]
    if not hazards:
        return []
    call = launch.call
    question = described(call.function, call.given, call.options, ARCH)
    compiled = COMPILER.ask(question) if question else {}
    if "ttgir" not in compiled:
        return []
    counted = ((finding, _count(finding.crossings, **compiled)) for finding in hazards)
    return [_between_warps(finding, *count) for finding, count in counted if count[0]]


def _between_warps(finding: MemoryFinding, pairs: int, line: str) -> MemoryFinding:
    other = (
        f"compiled for {ARCH} by triton {version('triton')}, {pairs} lanes of the tile are read by "
        f"another warp at {line}, and no barrier makes the store wait"
    )
    return replace(
        finding, kind="write_after_read_across_warps", count=1, other=other, crossings=()
    )


def _count(crossings: Iterable[Crossing], ttgir: str, ptx: str) -> tuple[int, str]:
    """Pairs of lanes in different warps with no barrier between, and the first line that reads."""
    known = layouts.accesses(ttgir)
    total, line = 0, ""
    for crossing in crossings:
        if not layouts.waits(ptx, crossing.read_line, crossing.write_line):
            found = _in_other_warps(known, crossing)
            total, line = total + found, line or (crossing.read_line if found else "")
    return total, line


def _in_other_warps(known: Sequence[layouts.Access], crossing: Crossing) -> int:
    """How many of the pairs belong to different warps, under the layouts of their two lines.

    Several warps may hold one element.  Of these the lowest stores it, and where load and store
    have one layout it stores what it loaded itself.
    """
    loads = _layouts(known, "load", crossing.read_line, crossing.read_tile)
    stores = _layouts(known, "store", crossing.write_line, crossing.write_tile)
    most = 0
    for loaded in loads:
        for stored in stores:
            read = layouts.holders(loaded, crossing.read_tile)
            written = layouts.holders(stored, crossing.write_tile)
            if read is None or written is None:
                continue
            readers = read.reshape(-1)[crossing.readers]
            writer = _lowest(written.reshape(-1)[crossing.writers])
            readers = _lowest(readers) if loaded == stored else readers
            most = max(most, int((readers != writer).sum()))
    return most


def _layouts(
    known: Sequence[layouts.Access], kind: str, line: str, shape: tuple[int, ...]
) -> set[str]:
    wanted = (kind, line, shape)
    return {one.layout for one in known if (one.kind, one.line, one.shape) == wanted}


def _lowest(masks: layouts.Masks) -> layouts.Masks:
    """The lowest bit of each mask."""
    return np.asarray(masks & (~masks + np.uint32(1)), np.uint32)
