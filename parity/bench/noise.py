"""Is one arm slower than the other, or is that noise?  Pure: times in, a verdict out.

Base, head and a control (base once more, in a process of its own) are timed in turn, round by
round.  Within a round all see the same clock and temperature, so each gives one ratio to base.  The
interval of the median ratio supposes nothing about how times are distributed: of n independent
rounds, fewer than k lie below the median with a chance that is binomial (order statistics; David
and Nagaraja, "Order Statistics", section 7.1).  The control shows what two processes of the same
code differ by, through their place in memory for instance; a difference counts only beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice, permutations
from math import comb
from statistics import median

ROUNDS = 25
CHANCE = 0.01  # that any verdict of a whole run is noise
# Events of CUDA tick in about half a microsecond, and no timed graph takes less than fifty.
SMALLEST = 1.01

Timer = Callable[[], float]


class Speed(StrEnum):
    """What a comparison says of head."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"  # no difference that noise could not make


@dataclass(frozen=True)
class Compared:
    """``ratio`` is the median of head over base, in ``low`` to ``high`` but for a small chance;
    ``margin`` is how far from 1 the interval must lie to count."""

    verdict: Speed
    base: float
    head: float
    ratio: float
    low: float
    high: float
    margin: float


def interleaved(timers: Mapping[str, Timer], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Times by name; every round takes the timers in another order, so that no place is better."""
    times: dict[str, list[float]] = {name: [] for name in timers}
    for order in islice(cycle(permutations(timers)), rounds):
        for name in order:
            times[name].append(timers[name]())
    return times


def judge(times: Mapping[str, Sequence[float]], comparisons: int) -> Compared:
    """The verdict on ``base``, ``head`` and ``control`` times, one of so many in a run.

    Raises:
        ValueError: too few rounds to be this sure.
    """
    base, head = times["base"], times["head"]
    chance = CHANCE / (2 * comparisons)  # each has two intervals
    ratios = [after / before for before, after in zip(base, head, strict=True)]
    low, high = interval(ratios, chance)
    control = [after / before for before, after in zip(base, times["control"], strict=True)]
    control_low, control_high = interval(control, chance)
    margin = max(SMALLEST, control_high, 1 / control_low)
    verdict = Speed.SLOWER if low > margin else Speed.FASTER if high < 1 / margin else Speed.SAME
    return Compared(verdict, median(base), median(head), median(ratios), low, high, margin)


def interval(values: Sequence[float], chance: float) -> tuple[float, float]:
    """Where the median lies but for this chance: the k-th smallest to the k-th largest value."""
    count, tail, k = len(values), 0.0, 0
    while 2 * (tail + comb(count, k) / 2**count) <= chance:
        tail += comb(count, k) / 2**count
        k += 1
    if k == 0:
        raise ValueError(
            f"Expected enough rounds for a chance of {chance:.2g} but got {count}; time more."
        )
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]
