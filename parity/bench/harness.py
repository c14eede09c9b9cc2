"""How many cases a second one process judges, and what share of that time is the harness's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from .. import observe, oracle, refusals, runner, trial
from ..behaviour import EFFECTS
from ..case import Case
from ..catalog import resolve
from ..evidence import Evidence
from ..generate import plan
from ..record import Finding
from ..runner import device, run_case
from ..spec import OpSpec

CASES_PER_OP = 8
PASSES = 5  # over all cases, of which the median counts
Cases = list[tuple[OpSpec, Case]]
CALLED = (  # where the code under test and its references are called from
    (observe, "candidate_function"),
    (trial, "candidate_function"),
    (refusals, "candidate_function"),
    (oracle, "resolve_function"),
)


@dataclass(frozen=True)
class HarnessCost:
    """One process over the planned cases of every op, compiled beforehand.

    ``cases_per_second`` are held to every check, ``repeated_per_second`` to values, gradients,
    effects on memory and a repeat only, so without a relation, a rule of autograd and an illegal
    call.  ``share`` is that of the wall time outside candidates, references and oracles.
    """

    tier: str
    cases: int
    cases_per_second: float
    repeated_per_second: float
    share: float


def measure(ops: str | None = None) -> HarnessCost:
    """Judge some cases of every op again and again, the first time to compile them."""
    chosen = [pair for spec in resolve(ops).values() for pair in _some(spec)]
    _seconds(chosen)
    every = median(_seconds(chosen) for _ in range(PASSES))
    with patch.object(runner, "EXTRAS", (_repeats,)):
        repeated = median(_seconds(chosen) for _ in range(PASSES))
    watch = Stopwatch()
    with watch.watching():
        wall = _seconds(chosen)
    return HarnessCost(
        "gpu" if device().type == "cuda" else "cpu",
        len(chosen),
        len(chosen) / every,
        len(chosen) / repeated,
        1 - watch.seconds / wall,
    )


def _seconds(cases: Cases) -> float:
    """How long it takes to judge them."""
    started = perf_counter()
    for spec, case in cases:
        run_case(spec, case)
    return perf_counter() - started


def _repeats(evidence: Evidence) -> tuple[str, list[Finding]]:
    return "effect:repeats", list(EFFECTS["repeats"].rule(evidence))


def _some(spec: OpSpec) -> Cases:
    cases = plan(spec, 0, 0)
    return [(spec, case) for case in cases[:: max(1, len(cases) // CASES_PER_OP)]]


class Stopwatch:
    """Adds up the seconds of calls that are not the harness's, backward passes included."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, calls of candidates, references and autograd are timed."""
        with ExitStack() as stack:
            for module, name in CALLED:
                stack.enter_context(patch.object(module, name, self._finding(module, name)))
            for name in ("grad", "backward"):
                timed = self.timed(getattr(torch.autograd, name))
                stack.enter_context(patch.object(torch.autograd, name, timed))
            yield

    def _finding(self, module: Any, name: str) -> Callable[[str], Callable[..., Any]]:
        find = getattr(module, name)
        return cache(lambda path: self.timed(find(path)))

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose outermost calls are added up once their work on the GPU is done."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return function(*args, **kwargs)
            self._running, started = True, perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
                self.seconds += perf_counter() - started
                self._running = False

        return call
