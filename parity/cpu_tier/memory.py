"""Memory as the programs see it: loads, stores, and taking stores back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime.interpreter import _interpreter

Array = npt.NDArray[Any]
Tensors = Mapping[str, torch.Tensor]


class Memory:
    """Real host memory, with a log that can undo every store since `begin`.

    Arrays of addresses, masks and values have one shape: `[P, ...]`, or `[1, ...]` where all
    programs do the same. `argument` names the tensor argument that a pointer was made from.
    """

    traces = False

    def __init__(self) -> None:
        self._log: list[tuple[Array, Array, Array]] = []

    def launch(self, kernel: str, tensors: Tensors, grid: tuple[int, ...]) -> None:
        """A launch begins; `tensors` are its tensor arguments by parameter name."""

    def begin(self, programs: Array) -> None:
        """The programs `[P, 3]` begin; what was stored before stays."""
        self._log.clear()

    def undo(self) -> None:
        """Put back what every store since `begin` has overwritten, the latest first."""
        while self._log:
            addresses, mask, old = self._log.pop()
            _interpreter.store(addresses, old, mask)

    def commit(self) -> None:
        """The programs came to their end; what they stored stays."""
        self._log.clear()

    def finish(self) -> None:
        """The launch is over."""

    def alone(self) -> None:
        """One program is about to run outside of this memory, through the stock operations."""

    def load(
        self,
        addresses: Array,
        mask: Array,
        other: Array,
        dtype: np.dtype[Any],
        argument: str | None,
    ) -> Array:
        """Values at `addresses` where `mask`, else `other`."""
        loaded: Array = _interpreter.load(addresses, mask, other, dtype)
        return loaded

    def store(self, addresses: Array, mask: Array, values: Array, argument: str | None) -> None:
        """Write `values` where `mask`; of two programs at one address the later one wins."""
        self._remember(addresses, mask, values.dtype)
        _interpreter.store(addresses, values, mask)

    def atomic(
        self, addresses: Array, mask: Array, dtype: np.dtype[Any], argument: str | None
    ) -> Array:
        """An atomic operation is about to change what is there; the mask of lanes that may."""
        self._remember(addresses, mask, dtype)
        return mask

    def barrier(self) -> None:
        """Every lane of a program waits: nothing to do where lanes run in step."""

    def _remember(self, addresses: Array, mask: Array, dtype: np.dtype[Any]) -> None:
        old = _interpreter.load(addresses, mask, np.zeros(addresses.shape, dtype), dtype)
        self._log.append((addresses, mask, old))
