"""Autotuned kernels where there is no GPU to time them on: each case takes one configuration.

Every configuration is one that some GPU may choose, so each has to be right.  The seed of a case
says which it takes, so that the cases of an op reach them all and a replay takes the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Choice:
    """The number that picks among the configurations of every autotuned kernel."""

    seed: int = 0


CHOICE = Choice()


@contextmanager
def chosen_by(seed: int) -> Iterator[None]:
    """Autotuned kernels take the configuration that ``seed`` picks within this context."""
    before, CHOICE.seed = CHOICE.seed, seed
    try:
        yield
    finally:
        CHOICE.seed = before


def install() -> None:
    """Let autotuners choose by ``CHOICE`` and not by time."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run

    def run_chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        every = self.configs
        if len(every) > 1:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            possible = self.prune_configs(kwargs)
            self.configs = [possible[CHOICE.seed % len(possible)]]
        try:
            return run(self, *args, **kwargs)
        finally:
            self.configs = every

    Autotuner.run = run_chosen
