"""What a case costs, counted exactly where time cannot be: launches, and bytes allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .observe import Observation

WORDS = {"launches": "launches of Triton kernels", "allocated": "bytes allocated"}


def cost(seen: Observation) -> dict[str, int]:
    """Counts by phase, e.g. ``forward launches``; launches are known on the CPU tier only."""
    launches = {f"{phase} launches": traced.started for phase, traced in seen.traces.items()}
    if seen.inputs.spec.may_copy:
        return launches
    return launches | {f"{phase} allocated": count for phase, count in seen.allocated.items()}


def given_way(base: Mapping[str, int], head: Mapping[str, int]) -> bool:
    """Whether base launches Triton kernels and head, where they are counted too, none at all."""
    launches = [[n for name, n in arm.items() if name.endswith("launches")] for arm in (base, head)]
    return all(launches) and any(launches[0]) and not any(launches[1])


def dearer(base: Mapping[str, int], head: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """What head has more of, with a sentence; a count that one arm lacks is not compared."""
    for name in sorted(base.keys() & head.keys()):
        if head[name] > base[name]:
            phase, what = name.split()
            yield (
                name,
                f"Expected at most {base[name]} {WORDS[what]} in {phase}, as in base, but head has "
                f"{head[name]}.",
            )
