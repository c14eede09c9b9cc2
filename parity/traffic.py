"""Traffic as a function of size: what kernels load and store, counted, fitted, and compared.

The counts of the CPU tier depend on no machine and have no noise.  The plan of an op with heads or
sequences holds a few cases that differ in one size only: tokens, heads or sequences.  A count y is
fitted as y ~ size^p over three sizes, so that p is 0 for what does not grow and 1 for what grows in
proportion; a binary search has about 0.3 over these sizes.  Head is worse where

* p grew by more than 1/2, which is nearer to one order of growth than to none, and the largest case
  costs more: a linear scan over `cu_seqlens`, a table that each head block reads again;
* or all tensors together take more than 5/4 of base's bytes at the largest size of every axis: one
  of at most four equal tensors is read or written once more.

What grows with the number of sequences in both arms is told as a HAZARD: the same tokens in more
sequences are no more work, but a linear search makes them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import log

from .record import Record
from .sizes import Series
from .verdict import Judgement, Verdict

CHECK = "traffic"
STEEPER = 0.5
MORE_BYTES = 1.25
Records = Mapping[str, Record]


@dataclass(frozen=True)
class Growth:
    """One count along a series, in base and in head."""

    tensor: str
    count: str
    base: tuple[int, ...]
    head: tuple[int, ...]


def traffic_judgements(
    op: str, every: Iterable[Series], base: Records, head: Records
) -> list[Judgement]:
    """REGRESSION where head's traffic is worse than base's, FIXED where base's is the worse.

    Series that did not run in both arms, or not on the CPU tier, have no judgement.
    """
    measured = [one for one in every if _measured(one, base) and _measured(one, head)]
    found = [item for one in measured for item in _steeper(op, one, base, head)]
    return found + list(_more_bytes(op, measured, base, head))


def is_traffic(judgement: Judgement) -> bool:
    """Whether a judgement is about traffic, which no single case shows."""
    return judgement.family.startswith(f"{CHECK} | ")


def _measured(one: Series, records: Records) -> bool:
    found = (records.get(case.id) for case in one.cases)
    return all(record is not None and record.traffic for record in found)


def _steeper(op: str, one: Series, base: Records, head: Records) -> Iterator[Judgement]:
    """What grows faster with the size in one arm than in the other."""
    for growth in _growths(one, base, head):
        before, after = (exponent(one.sizes, counts) for counts in (growth.base, growth.head))
        verdict = _verdict(after - before, STEEPER, growth.head[-1] - growth.base[-1])
        if not verdict and one.axis == "sequences" and min(before, after) > STEEPER:
            verdict = Verdict.HAZARD
        if verdict:
            family = f"{growth.tensor} | {growth.count} grow with {one.axis}"
            sentence = (
                f"{growth.count[0].upper()}{growth.count[1:]} of {growth.tensor} grow as "
                f"{one.axis}^{before:.2f} in base and {one.axis}^{after:.2f} in head: "
                f"{_told(growth.base)} and {_told(growth.head)} at {_told(one.sizes)} {one.axis} "
                f"({one.layout})."
            )
            yield _judgement(op, one, verdict, family, sentence)


def _verdict(change: float, limit: float, largest: float) -> Verdict | None:
    if change > limit and largest > 0:
        return Verdict.REGRESSION
    return Verdict.FIXED if change < -limit and largest < 0 else None


def _growths(one: Series, base: Records, head: Records) -> Iterator[Growth]:
    """Every count that both arms have at every size."""
    costs = [[records[case.id].traffic for case in one.cases] for records in (base, head)]
    tensors = set.intersection(*(set(cost) for arm in costs for cost in arm))
    for tensor in sorted(tensors):
        for name, count in COUNTS[one.axis].items():
            base_counts, head_counts = (tuple(cost[tensor][count] for cost in arm) for arm in costs)
            if all(base_counts) and all(head_counts):
                yield Growth(tensor, name, base_counts, head_counts)


# What a size should not make dearer.  Bytes may grow with the sequences a vector load looks at, and
# loads with the heads of a program, at no cost.
COUNTS = {
    "tokens": {"bytes loaded": "loaded", "bytes stored": "stored"},
    "heads": {"bytes loaded": "loaded", "bytes stored": "stored"},
    "sequences": {"loads": "loads"},
}


def exponent(sizes: tuple[int, ...], counts: tuple[int, ...]) -> float:
    """The p of `count ~ size^p`, by least squares over the logarithms."""
    x, y = [log(size) for size in sizes], [log(count) for count in counts]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return rise / sum((a - x_mean) ** 2 for a in x)


def _more_bytes(op: str, every: list[Series], base: Records, head: Records) -> Iterator[Judgement]:
    """Whether one arm moves more bytes at the largest size of every axis."""
    pairs = [tuple(_bytes(arm[one.cases[-1].id]) for arm in (base, head)) for one in every]
    if not pairs:
        return
    if all(after > MORE_BYTES * before for before, after in pairs):
        verdict = Verdict.REGRESSION
    elif all(before > MORE_BYTES * after for before, after in pairs):
        verdict = Verdict.FIXED
    else:
        return
    before, after = pairs[-1]
    sentence = (
        f"Kernels move {before} bytes in base and {after} in head at {every[-1].sizes[-1]} "
        f"{every[-1].axis} ({every[-1].layout}), and alike at every other size."
    )
    yield _judgement(op, every[-1], verdict, "all tensors | bytes moved", sentence)


def _bytes(record: Record) -> int:
    return sum(moved["loaded"] + moved["stored"] for moved in record.traffic.values())


def _judgement(op: str, one: Series, verdict: Verdict, family: str, sentence: str) -> Judgement:
    signature = f"{CHECK} | {family}"
    return Judgement(verdict, op, one.cases[-1].id, signature, signature, sentence)


def _told(counts: Iterable[float]) -> str:
    return ", ".join(f"{count:g}" for count in counts)
