"""Memory that torch has allocated and nothing has written: `empty` and its relatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .memory import Array

ALLOCATORS = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class FreshMemory(TorchDispatchMode):
    """Within this context it is known which bytes of which storage were never written.

    A torch operation that writes into a storage counts as writing all of it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # first address -> written bytes [n] and a tensor that keeps the address from being reused.
        self.storages: dict[int, tuple[Array, torch.Tensor]] = {}
        # first address -> the kernel that last wrote there, and the name of its argument.
        self.writers: dict[int, tuple[str, str]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function.overloadpacket.__name__ in ALLOCATORS:
            storage = result.untyped_storage()
            if storage.nbytes():
                self.storages[storage.data_ptr()] = (np.zeros(storage.nbytes(), bool), result)
        elif function._schema.is_mutable:
            for value in self._written(function, args, kwargs):
                self.storages.pop(value.untyped_storage().data_ptr(), None)
        return result

    @staticmethod
    def _written(function: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that the schema says the operation writes."""
        given = dict(zip((one.name for one in function._schema.arguments), args, strict=False))
        names = [one.name for one in function._schema.arguments if one.is_write]
        leaves = tree_leaves([(given | kwargs).get(name) for name in names])
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def written(self, start: int) -> Array | None:
        """The map of written bytes of the storage at an address, if it began as fresh memory."""
        return self.storages[start][0] if start in self.storages else None
