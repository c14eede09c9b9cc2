"""Memory the candidate allocates: poisoned, so that what it forgets to write shows, and guarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .guards import Guarded, Image, bits, guard_values

_GUARD_BYTES = 2**14
_SMALL = 2**20  # bytes; what larger buffers hold at first is not kept for the next of their size
_POISON = {  # quiet NaNs with a payload that no arithmetic of ours produces
    torch.float32: 0x7FE0DEAD,
    torch.bfloat16: 0x7FED,
    torch.float16: 0x7FAD,
}
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_FRESH = _EMPTY | {"clone", "zeros", "zeros_like", "new_zeros", "ones_like", "full", "full_like"}


@dataclass
class Allocation:
    """One tensor the candidate made, in the phase (``forward``, ``backward``) it was made in."""

    phase: str
    guarded: Guarded

    def guards(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What the guards before and behind it held at first, and what they hold now, all 1-D."""
        item = self.guarded
        ((span,), _, start) = item.image.places[""]
        parts = (slice(None, start), slice(start + span, None))
        return [(item.before[part], item.buffer[part]) for part in parts]


@dataclass
class Allocations(TorchDispatchMode):
    """While active, every fresh tensor lies between guards and starts out as poison.

    Without this an output can sit in freed memory that still holds the right answer, and a write
    past its end can hit nothing that anyone looks at.  ``allocated`` counts by phase the bytes of
    all new memory, whichever torch operation takes it.
    """

    phase: str
    made: list[Allocation]
    allocated: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocated.setdefault(self.phase, 0)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = _name(func)
        if name not in _FRESH or not isinstance(result, torch.Tensor):
            if not _only_views(func):
                self.allocated[self.phase] += _new_bytes(result, (args, kwargs or {}))
            return result
        self.allocated[self.phase] += result.untyped_storage().nbytes()
        if result.is_meta or not result.numel():
            return result
        return self._guard(result, poison=name in _EMPTY)

    def _guard(self, tensor: torch.Tensor, *, poison: bool) -> torch.Tensor:
        size = tensor.untyped_storage().nbytes()
        image_of = _kept_image if size <= _SMALL else _image
        image = image_of(size // tensor.element_size(), tensor.dtype, poison)
        buffer = image.on(tensor.device).clone()
        _, _, start = image.places[""]
        first = start * buffer.element_size()
        # A storage of its own without the guards: an absolute offset counts from where it begins.
        storage = buffer.untyped_storage()[first : first + size]
        fresh = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        fresh.set_(storage, 0, tensor.size(), tensor.stride())
        if not poison:
            fresh.copy_(tensor)
        self.made.append(Allocation(self.phase, Guarded(fresh, buffer, tensor.device, image, "")))
        return fresh


def _image(span: int, dtype: torch.dtype, poison: bool) -> Image:
    """New memory of ``span`` elements between guards."""
    guard = _GUARD_BYTES // dtype.itemsize

    def build(device: torch.device) -> torch.Tensor:
        buffer = guard_values(span + 2 * guard, dtype, device).clone()
        if poison and dtype in _POISON:
            bits(buffer)[guard : guard + span] = _POISON[dtype]
        return buffer

    return Image({"": ((span,), (1,), guard)}, build)


_kept_image = lru_cache(maxsize=64)(_image)


@cache
def _name(func: Callable[..., Any]) -> str:
    """Of an operator, whichever of its overloads it is."""
    return getattr(func, "overloadpacket", func).__name__


@cache
def _only_views(func: Callable[..., Any]) -> bool:
    """Whether an operator says that all it returns is memory of its arguments."""
    schema = getattr(func, "_schema", None)
    return schema is not None and all(item.alias_info for item in schema.returns)


def _new_bytes(result: object, given: object) -> int:
    """Bytes of the memory behind the tensors of a result that none of the arguments lies in."""
    fresh = {_address(t): t.untyped_storage().nbytes() for t in _tensors(result)}
    for tensor in _tensors(given) if fresh else ():
        fresh.pop(_address(tensor), None)
    return sum(fresh.values())


def _tensors(given: object) -> list[torch.Tensor]:
    """The tensors among the arguments or results of an operator: in tuples, lists and dicts."""
    found, left = [], [given]
    while left:
        item = left.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, tuple | list):
            left += item
        elif isinstance(item, dict):
            left += item.values()
    return found


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_poison(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor still holds the poison it was allocated with, bool, same shape."""
    if tensor.dtype not in _POISON:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    return bits(tensor.contiguous()) == _POISON[tensor.dtype]
