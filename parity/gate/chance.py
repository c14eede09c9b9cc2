"""How sure a count of failures among runs makes us."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

CONFIDENCE = 0.95


def interval(hits: int, runs: int) -> tuple[float, float]:
    """The rates that a count of hits leaves plausible (Clopper and Pearson, 1934)."""
    tail = (1 - CONFIDENCE) / 2
    low = _root(lambda rate: _at_least(hits, runs, rate) - tail) if hits else 0.0
    high = _root(lambda rate: tail - _at_most(hits, runs, rate)) if hits < runs else 1.0
    return low, high


def more_often(hits: int, runs: int, other_hits: int, other_runs: int) -> float:
    """The chance of a split this one-sided if both rates are equal (Fisher's exact test)."""
    all_runs, all_hits = runs + other_runs, hits + other_hits
    most = min(all_hits, runs)
    ways = sum(comb(runs, n) * comb(other_runs, all_hits - n) for n in range(hits, most + 1))
    return ways / comb(all_runs, all_hits)


def _at_least(hits: int, runs: int, rate: float) -> float:
    return sum(comb(runs, n) * rate**n * (1 - rate) ** (runs - n) for n in range(hits, runs + 1))


def _at_most(hits: int, runs: int, rate: float) -> float:
    return 1 - _at_least(hits + 1, runs, rate)


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function of a rate crosses zero, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return low
