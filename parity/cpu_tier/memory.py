"""Memory as the programs see it: loads, stores, and taking stores back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime.interpreter import _interpreter

Array = npt.NDArray[Any]
Operation = Literal["load", "store", "atomic"]


@dataclass(frozen=True)
class Call:
    """One launch: the kernel's function, its arguments by name, what the launch adds, the grid.

    `options` are those that tell the compiler (`num_warps`, `enable_fp_fusion`, ...).
    """

    function: FunctionType
    given: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, ...]

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.function.__name__

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor arguments."""
        return {name: one for name, one in self.given.items() if isinstance(one, torch.Tensor)}


class Memory:
    """Real host memory, with a log that can undo every store since `begin`.

    Lanes that would leave the storage of their tensor are masked off, since on a CPU they would
    destroy the process, at once or later; the launch runs to its end and then raises.

    Arrays of addresses, masks and values have one shape: `[P, ...]`, or `[1, ...]` where all
    programs do the same. `argument` names the tensor argument that a pointer was made from.
    """

    traces = False

    def __init__(self) -> None:
        self._strays: set[str] = set()
        self._log: list[tuple[Array, Array, Array]] = []
        self._kernel = ""
        self._storages: dict[str | None, tuple[int, int]] = {}

    def launch(self, call: Call) -> None:
        """A launch begins."""
        self._kernel = call.kernel
        self._strays.clear()
        storages = ((name, tensor.untyped_storage()) for name, tensor in call.tensors.items())
        self._storages = {name: (one.data_ptr(), one.nbytes()) for name, one in storages}

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
        """The launch came to its end.

        Raises:
            IndexError: lanes tried to leave the storage of their tensor.
        """
        if self._strays:
            raise IndexError(
                f"Expected {self._kernel} to stay inside the storage of its tensors, but lanes of "
                f"it {' and '.join(sorted(self._strays))} outside: parity.cpu_tier.trace() names "
                "line and element."
            )

    def alone(self, reason: str) -> None:
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
        mask = self._admit("load", addresses, mask, dtype.itemsize, argument)
        loaded: Array = _interpreter.load(addresses, mask, other, dtype)
        return loaded

    def store(self, addresses: Array, mask: Array, values: Array, argument: str | None) -> None:
        """Write `values` where `mask`; of two programs at one address the later one wins."""
        mask = self._admit("store", addresses, mask, values.dtype.itemsize, argument)
        self._remember(addresses, mask, values.dtype)
        _interpreter.store(addresses, values, mask)

    def atomic(
        self, addresses: Array, mask: Array, dtype: np.dtype[Any], argument: str | None
    ) -> Array:
        """An atomic operation is about to change what is there; the mask of lanes that may."""
        mask = self._admit("atomic", addresses, mask, dtype.itemsize, argument)
        self._remember(addresses, mask, dtype)
        return mask

    def barrier(self) -> None:
        """Every lane of a program waits: nothing to do where lanes run in step."""

    def _admit(
        self, operation: Operation, addresses: Array, mask: Array, size: int, argument: str | None
    ) -> Array:
        """The mask without the lanes that leave the storage of the argument, where it is known."""
        if argument not in self._storages:
            return mask
        start, count = self._storages[argument]
        offset = addresses.view(np.int64) - start
        inside = mask & (offset >= 0) & (offset <= count - size)
        if not np.array_equal(inside, mask):
            self._strays.add(f"{operation} {argument}")
        return np.asarray(inside)

    def _remember(self, addresses: Array, mask: Array, dtype: np.dtype[Any]) -> None:
        old = _interpreter.load(addresses, mask, np.zeros(addresses.shape, dtype), dtype)
        self._log.append((addresses, mask, old))
