"""Memory as the programs see it: loads, stores, and taking stores back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from triton.runtime.interpreter import _interpreter

Array = npt.NDArray[Any]


class Memory:
    """Real host memory, with a log that can undo every store since `mark`.

    Arrays of addresses, masks and values have one shape: `[P, ...]`, or `[1, ...]` where all
    programs do the same.
    """

    def __init__(self) -> None:
        self._log: list[tuple[Array, Array, Array]] = []

    def mark(self) -> None:
        """Keep everything stored so far."""
        self._log.clear()

    def undo(self) -> None:
        """Put back what every store since `mark` has overwritten, the latest first."""
        while self._log:
            addresses, mask, old = self._log.pop()
            _interpreter.store(addresses, old, mask)

    def load(self, addresses: Array, mask: Array, other: Array, dtype: np.dtype[Any]) -> Array:
        """Values at `addresses` where `mask`, else `other`."""
        loaded: Array = _interpreter.load(addresses, mask, other, dtype)
        return loaded

    def store(self, addresses: Array, mask: Array, values: Array) -> None:
        """Write `values` where `mask`; of two programs at one address the later one wins."""
        old = _interpreter.load(addresses, mask, np.zeros_like(values), values.dtype)
        self._log.append((addresses, mask, old))
        _interpreter.store(addresses, values, mask)

    def barrier(self) -> None:
        """Every lane of a program waits: nothing to do where lanes run in step."""
