"""A tensor inside memory whose other elements must stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod

import torch

GAP = 8  # guard elements between the rows of a sliced tensor
HOST = torch.device("cpu")  # where all but the candidate runs: small tensors are slow on a GPU
Memory = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride, first element


@dataclass(frozen=True, eq=False)
class Image:
    """What a buffer holds when it is handed out, and which of its elements are the tensor's.

    ``where`` are size, stride and offset of the tensor, everything else is a guard; ``build`` gives
    the whole buffer on a device, 1-D, which nobody writes.
    """

    where: Memory
    build: Callable[[torch.device], torch.Tensor]
    _copies: dict[torch.device, torch.Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def tensor(self) -> torch.Tensor:
        """The tensor as it is handed out, on the host, to be read only."""
        return self.on(HOST).as_strided(*self.where)

    @cached_property
    def inside(self) -> torch.Tensor:
        """Whether an element of the buffer belongs to the tensor, bool, on the host."""
        mask = torch.zeros(len(self.on(HOST)), dtype=torch.bool)
        mask.as_strided(*_distinct(self.where)).fill_(True)
        return mask

    def on(self, device: torch.device) -> torch.Tensor:
        """The content on a device, to be read only."""
        if device not in self._copies:
            self._copies[device] = self.build(device)
        return self._copies[device]

    def fresh(self, device: torch.device) -> Guarded:
        """The tensor in a buffer of its own on a device."""
        before = self.on(device)
        buffer = before.clone()
        return Guarded(view(buffer, self.where), buffer, before, self)


@dataclass(frozen=True, eq=False)
class Guarded:
    """A tensor, the buffer it lies in (its whole storage, 1-D), and what that held at the start."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    before: torch.Tensor
    image: Image

    def changed(
        self, since: torch.Tensor | None = None, until: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Buffer indices whose bits changed: (in the tensor, in the guards), on the host.

        ``since`` and ``until`` are copies of the buffer [as handed out, as it is now].
        """
        first = self.before if since is None else since
        last = self.buffer if until is None else until
        if torch.equal(bits(first), bits(last)):
            return _NOWHERE, _NOWHERE
        first = self.image.on(HOST) if since is None else since.to(HOST)
        differs = bits(first) != bits(last.to(HOST))
        inside = self.image.inside
        return (differs & inside).nonzero().flatten(), (differs & ~inside).nonzero().flatten()

    def index(self, position: int) -> str:
        """The place of a guard element, in words, relative to the tensor."""
        first, last = (int(i) for i in self.image.inside.nonzero().flatten()[[0, -1]])
        if position < first:
            return f"{first - position} elements before its start"
        if position > last:
            return f"{position - last} elements past its end"
        return "between its rows"


_NOWHERE = torch.zeros(0, dtype=torch.int64)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same width, so that NaN and -0 compare by their bits."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(width)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order as bytes, whatever the strides."""
    # not contiguous(): with one element any stride passes for contiguous and stays
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def place(
    values: torch.Tensor, dtype: torch.dtype, variant: str, guard: int, *, poison: bool = False
) -> Image:
    """Lay ``values`` out in a guarded buffer with the strides that ``variant`` names.

    Guards of tables (``poison``) are NaN, since a read must show; all others are large finite
    numbers that differ from each other, since a NaN that is read, rotated and written back would
    keep its bits and hide the write.
    """
    where = memory(tuple(values.shape), variant, guard)
    return Image(where, laid_out(values.to(HOST), dtype, where, guard, poison=poison).to)


def laid_out(
    values: torch.Tensor, dtype: torch.dtype, where: Memory, guard: int, *, poison: bool
) -> torch.Tensor:
    """The whole buffer, on the device of the values."""
    size, stride, start = where
    span = (
        1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0
    )
    count = start + span + GAP + guard
    if poison:
        buffer = torch.full((count,), float("nan"), dtype=dtype, device=values.device)
    else:
        buffer = guard_values(count, dtype, values.device).clone()
    distinct = _distinct(where)
    buffer.as_strided(*distinct).copy_(values[tuple(map(slice, distinct[0]))])
    return buffer


def view(buffer: torch.Tensor, where: Memory) -> torch.Tensor:
    """A tensor in the memory of a buffer that is no view of it for autograd."""
    size, stride, start = where
    alone = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
    return alone.set_(buffer.untyped_storage(), start, size, stride)


def _distinct(where: Memory) -> Memory:
    """The same elements, each once, of a tensor that is expanded along some axes."""
    size, stride, start = where
    once = tuple(min(n, 1) if step == 0 else n for n, step in zip(size, stride, strict=True))
    return once, stride, start


def memory(size: tuple[int, ...], variant: str, guard: int) -> Memory:
    """Sizes, strides and offset of a variant behind ``guard`` elements."""
    if variant == "expanded":
        return size, (0,) * len(size), guard
    order = list(range(len(size)))
    if variant == "transposed":
        order[0], order[1] = 1, 0  # the two outer axes swap places in memory
    step = 2 if variant == "strided_last" else 1
    stride = [0] * len(size)
    for axis in reversed(order):
        stride[axis] = step
        width = size[axis] + (GAP if variant == "sliced" and axis == len(size) - 1 else 0)
        step *= max(width, 1)
    if variant == "expanded_heads":
        stride = [0 if axis == len(size) - 2 else n for axis, n in enumerate(stride)]
    return size, tuple(stride), guard + {"offset": 1, "sliced": GAP // 2}.get(variant, 0)


def guard_values(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Large numbers that repeat only after 97 elements: a row shifted into a guard must show.

    To be read only.
    """
    return _guard_pattern(1 << count.bit_length(), dtype, device)[:count]


@cache
def _guard_pattern(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not dtype.is_floating_point:
        value = 2**30 if dtype.itemsize >= 4 else 1
        return torch.full((count,), value, dtype=dtype, device=device)
    base = 2.0**14 if dtype == torch.float16 else 2.0**60
    steps = 1 + torch.arange(count, dtype=torch.float32, device=device) % 97 / 128
    return (base * steps).to(dtype)
