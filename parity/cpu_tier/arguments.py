"""The tensors of a launch as ranges of memory: what an address means in terms of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from .memory import Array


@dataclass(frozen=True)
class Owner:
    """The tensor that the memory behind an argument belongs to, under the name its op gives it.

    What its storage has before its first and after its last element is not the op's.  ``buffer``
    is that storage with the guards around it: a lane that strays reads and writes those.
    """

    name: str
    tensor: torch.Tensor
    buffer: torch.Tensor


Owners = Callable[[torch.Tensor], Owner | None]


@dataclass(frozen=True)
class Argument:
    """One tensor argument of a kernel: `name` is the kernel's parameter.

    Where an owner of its memory is known, `tensor` is that one, and `owner` is what it is called.
    """

    name: str
    tensor: torch.Tensor
    owner: str = ""
    buffer: torch.Tensor | None = None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, owners: Owners) -> Argument:
        """The argument of a launch: its own tensor, or the one that owns its memory."""
        owner = owners(tensor)
        if owner is None:
            return cls(name, tensor)
        return cls(name, owner.tensor, owner.name, owner.buffer)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.tensor.element_size()

    @cached_property
    def storage(self) -> tuple[int, int]:
        """First address and number of bytes of the storage behind the tensor."""
        return _range(self.tensor)

    @cached_property
    def memory(self) -> tuple[int, int]:
        """First address and number of bytes of the storage and what guards it."""
        return self.storage if self.buffer is None else _range(self.buffer)

    @cached_property
    def view(self) -> Array:
        """Which elements of the storage, counted from the tensor's first, the view has: `[span]`.

        Strides are never negative in torch, so the first element has the lowest address.
        """
        sizes, strides = self.tensor.shape, self.tensor.stride()
        if 0 in sizes:
            return np.zeros(0, bool)
        span = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
        mask = np.zeros(span, bool)
        np.lib.stride_tricks.as_strided(mask, sizes, strides)[...] = True
        return mask

    def elements(self, addresses: Array) -> Array:
        """Elements from the tensor's first to each address; negative before it."""
        return (addresses.astype(np.int64) - self.tensor.data_ptr()) // self.size

    def in_storage(self, addresses: Array) -> Array:
        """Whether the whole element at each address lies inside the storage."""
        return self._within(self.storage, addresses)

    def in_memory(self, addresses: Array) -> Array:
        """Whether the whole element at each address lies in the storage or in its guards."""
        return self._within(self.memory, addresses)

    def _within(self, extent: tuple[int, int], addresses: Array) -> Array:
        start, count = extent
        offset = addresses.astype(np.int64) - start
        return np.asarray((offset >= 0) & (offset + self.size <= count))

    def in_reach(self, addresses: Array) -> Array:
        """Whether the element at each address lies in memory that the tensor's storage promises."""
        if not self.owner:
            return self.in_storage(addresses)
        element = self.elements(addresses)
        return np.asarray((element >= 0) & (element < len(self.view)))

    def in_view(self, addresses: Array) -> Array:
        """Whether the element at each address is one of the tensor's own."""
        element = self.elements(addresses)
        near = (element >= 0) & (element < len(self.view))
        if self.view.all():
            return np.asarray(near)
        inside = np.zeros(near.shape, bool)
        inside[near] = self.view[element[near]]
        return inside

    def name_of(self, address: int) -> str:
        """The element at an address for people: its index, or how far it lies outside."""
        element = int(self.elements(np.array([address]))[0])
        if not bool(self.in_view(np.array([address]))[0]):
            return f"element {element} of {len(self.view)}"
        index = [0] * self.tensor.ndim
        for axis in np.argsort(self.tensor.stride(), kind="stable")[::-1]:
            if self.tensor.shape[axis] > 1 and self.tensor.stride(axis) > 0:
                index[axis], element = divmod(element, self.tensor.stride(axis))
        return str(index)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
