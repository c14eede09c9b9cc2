"""How many cases a second one process judges, and what share of that time is the harness's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from .. import observe, oracle, refusals, trial
from ..case import Case
from ..catalog import resolve
from ..generate import plan
from ..runner import device, run_case
from ..spec import OpSpec

CASES_PER_OP = 8
CALLED = (  # where the code under test and its references are called from
    (observe, "candidate_function"),
    (trial, "candidate_function"),
    (refusals, "candidate_function"),
    (oracle, "resolve_function"),
)


@dataclass(frozen=True)
class HarnessCost:
    """One process over the planned cases of every op, compiled beforehand."""

    tier: str
    cases: int
    cases_per_second: float
    share: float  # of the wall time outside candidates, references and oracles


def measure(ops: str | None = None) -> HarnessCost:
    """Judge some cases of every op twice, and time the second pass."""
    chosen = [pair for spec in resolve(ops).values() for pair in _some(spec)]
    for spec, case in chosen:
        run_case(spec, case)
    watch = Stopwatch()
    with watch.watching():
        started = perf_counter()
        for spec, case in chosen:
            run_case(spec, case)
        wall = perf_counter() - started
    return HarnessCost(
        "gpu" if device().type == "cuda" else "cpu",
        len(chosen),
        len(chosen) / wall,
        1 - watch.seconds / wall,
    )


def _some(spec: OpSpec) -> list[tuple[OpSpec, Case]]:
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
