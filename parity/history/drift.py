"""Drift: has a number moved up for good, and since which night?

A rank test, so that nothing is assumed about how a number scatters: if the nights are exchangeable,
each choice of ``RECENT`` of them is equally likely to hold the largest values.  The last week is
compared with the nights before it; the chance that a series that does not move looks so far apart
is counted exactly (Mann and Whitney 1947), ties counting against an alarm.  It must be below
``RATE`` divided by the number of series looked at, so that a machine raises at most one false
alarm in 1 / ``RATE`` nights (Boole's inequality), and at most 60 ``RATE`` = 0.6 % of all quiet
stretches of 60 nights hold one.

Costs are counted and do not scatter: a rise is one on the night it happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import comb
from statistics import median

from .night import Night

WINDOW = 60  # nights looked at, the last week included
RECENT = 7
RATE = 1e-4
# A move that nobody would act on is none, however certain.  The time of a case is that of the whole
# machine, which its other work moves too.
SMALLEST = {"headroom": 1.05, "cost": 1.05, "time": 1.25}

Series = tuple[str, str, str]


@dataclass(frozen=True)
class Drift:
    """A number that went up between two nights, from one level (a median) to another."""

    series: Series
    before: float
    after: float
    last: Night
    first: Night


def drifts(nights: Sequence[Night]) -> list[Drift]:
    """What has drifted as of the last of these nights, which are of one series and sorted."""
    stretches = {series: _stretch(nights, series) for series in nights[-1].measures()}
    counted = {s: found for s, found in stretches.items() if s[1] == "cost"}
    long = {s: found for s, found in stretches.items() if s[1] != "cost" and len(found) > RECENT}
    limit = RATE / max(1, len(long))
    found = [_rise(series, stretch) for series, stretch in counted.items()]
    found += [_drift(series, stretch, limit) for series, stretch in long.items()]
    return [drift for drift in found if drift is not None]


def _stretch(nights: Sequence[Night], series: Series) -> list[tuple[Night, float]]:
    """The last nights in a row that measured the same fixed cases, without incomplete ones."""
    wanted = nights[-1].totals().get(series[0])
    found: list[tuple[Night, float]] = []
    for night in reversed(nights):
        total, value = night.totals().get(series[0]), night.measures().get(series)
        if total is None or wanted is None or total.plan != wanted.plan or len(found) == WINDOW:
            break
        if total.complete and value is not None:
            found.append((night, value))
    return found[::-1]


def _rise(series: Series, stretch: list[tuple[Night, float]]) -> Drift | None:
    """The last rise within the last week that still stands."""
    tonight = stretch[-1][1] if stretch else 0.0
    for (last, before), (first, after) in reversed([*pairwise(stretch[-RECENT - 1 :])]):
        if min(after, tonight) > SMALLEST[series[1]] * before:
            return Drift(series, before, tonight, last, first)
    return None


def _drift(series: Series, stretch: list[tuple[Night, float]], limit: float) -> Drift | None:
    values = [value for _, value in stretch]
    if chance(values[:-RECENT], values[-RECENT:]) > limit:
        return None
    at = step(values)
    before, after = median(values[:at]), median(values[at:])
    if after < SMALLEST[series[1]] * before:
        return None
    return Drift(series, before, after, stretch[at - 1][0], stretch[at][0])


def chance(before: Sequence[float], after: Sequence[float]) -> float:
    """How likely ``after`` lies this far above ``before`` if nothing has moved."""
    above = sum(late > early for late in after for early in before)
    counts = _arrangements(len(before), len(after))
    return sum(counts[above:]) / comb(len(before) + len(after), len(after))


@cache
def _arrangements(before: int, after: int) -> list[int]:
    """How many orders of ``before + after`` values have 0, 1, 2, ... pairs with the later above.

    The coefficients of the Gaussian binomial, a product of (1 - x^(before + i)) / (1 - x^i).
    """
    counts = [1] + [0] * (before * after)
    for i in range(1, after + 1):
        for k in range(len(counts) - 1, before + i - 1, -1):
            counts[k] -= counts[k - before - i]
        for k in range(i, len(counts)):
            counts[k] += counts[k - i]
    return counts


def step(values: Sequence[float]) -> int:
    """Where a series is best cut in two levels: the least sum of distances to the medians."""
    return min(range(1, len(values)), key=lambda at: _spread(values[:at]) + _spread(values[at:]))


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(value - middle) for value in values)
