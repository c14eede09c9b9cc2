"""Checks that need to know every access of every program: the CPU tier's own.

Two kinds of results.  A finding is proven by this very run.  A hazard is what the same accesses
allow on hardware, which runs programs and warps in an order of its own; it has not struck here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .checks import Check
from .comparators import same_bits
from .evidence import Evidence
from .observe import Observation, observe
from .oracle import Tensors
from .record import Finding
from .trial import again
from .watching import CONFLICTS, READS_OUTSIDE, memory_findings, shown, unseen

if TYPE_CHECKING:
    from .cpu_tier.findings import MemoryFinding

HAZARDS = (
    *CONFLICTS,
    "read_never_written",
    "read_out_of_view",
    "read_after_write",
    "write_after_read",
    "write_after_read_across_warps",
)


def reads_inside(evidence: Evidence) -> Iterator[Finding]:
    """No lane reads before the first or after the last element of the tensor it means."""
    told = set()
    for phase, found in memory_findings(evidence.seen, READS_OUTSIDE):
        place = _place(evidence.seen, phase, found)
        if place not in told:
            told.add(place)
            sentence = f"Expected {phase} to read only inside its tensors but {found.sentence}"
            yield Finding("reads", place, "read outside", sentence=sentence)


def _place(seen: Observation, phase: str, found: MemoryFinding) -> str:
    """Which memory, in words that a copy does not change: an op may copy its data, or not."""
    named = {item.name for item in seen.inputs.spec.inputs if item.kind != "data"}
    return f"{found.owner if found.owner in named else 'data'} in {phase}"


def order_of_programs(evidence: Evidence) -> Iterator[Finding]:
    """Programs that meet in memory give the same bits when they run in the opposite order.

    Hardware promises no order.  The first run took all programs in step, the second takes them one
    after the other, the last first.
    """
    if not shown(evidence.seen, CONFLICTS):
        return
    reversed_results = _in_reverse(evidence)
    for name in evidence.comparable:
        if name not in reversed_results:
            continue
        mismatch = same_bits(
            actual=evidence.settled(name, reversed_results[name]),
            expected=evidence.lanes(name).actual,
        )
        if mismatch:
            phase = "backward" if name.endswith(".grad") else "forward"
            met = shown(evidence.seen, CONFLICTS, phase) or shown(evidence.seen, CONFLICTS)
            yield Finding(
                "order",
                name,
                "depends on the order of programs",
                sentence=f"Expected {name}{list(mismatch.worst)} to have the same bits in every "
                f"order of programs but it {mismatch.sentence}.{met}",
            )


def _in_reverse(evidence: Evidence) -> Tensors:
    from .cpu_tier import sequential

    with sequential(reverse=True):
        return observe(again(evidence), effects=False).results


CHECKS: dict[str, Check] = {"reads": reads_inside, "order": order_of_programs}
TRACED = (*CHECKS, "hazard", "traffic")  # what is known of every access or not at all


def not_run(seen: Observation) -> dict[str, str]:
    """The checks that a trace with gaps cannot make, and what the gap is; a failed run has none."""
    reason = "" if seen.error is not None else unseen(seen)
    return dict.fromkeys(TRACED, reason) if reason else {}


def hazards(seen: Observation, proven: Iterable[Finding]) -> tuple[Finding, ...]:
    """What may go wrong in another order of warps or programs, each kind once for each tensor."""
    kinds = set(HAZARDS) - (set(CONFLICTS) if any(f.check == "order" for f in proven) else set())
    found = {
        (_place(seen, phase, item), item.kind): item.sentence
        for phase, item in reversed([*memory_findings(seen, kinds)])
    }
    return tuple(
        Finding("hazard", place, kind, sentence=sentence)
        for (place, kind), sentence in found.items()
    )
