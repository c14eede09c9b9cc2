"""A tensor inside memory whose other elements must stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import takewhile
from math import prod

import numpy as np
import torch

GAP = 8  # guard elements between the rows of a sliced tensor
LARGE = 2**26  # bytes of buffers that are not joined, and elements that are compared at once
HOST = torch.device("cpu")  # where all but the candidate runs: small tensors are slow on a GPU
Changed = tuple[torch.Tensor, torch.Tensor]  # elements of a buffer: in its tensor, in its guards
Memory = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride, first element


@dataclass(frozen=True, eq=False)
class Image:
    """What a buffer holds when it is handed out, and which of its elements are whose.

    ``places`` are size, stride and offset of each tensor in it, everything else is a guard;
    ``build`` gives the whole buffer, 1-D: on the host to be read only, on any other device a new
    one at each call, which may be written.
    """

    places: Mapping[str, Memory]
    build: Callable[[torch.device], torch.Tensor]
    _copies: dict[torch.device, torch.Tensor] = field(default_factory=dict, repr=False)
    _masks: dict[tuple[str, ...], torch.Tensor] = field(default_factory=dict, repr=False)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as it is handed out, on the host, to be read only."""
        return self.on(HOST).as_strided(*self.places[name])

    def inside(self, *names: str) -> torch.Tensor:
        """Whether an element of the buffer belongs to these tensors, bool, on the host."""
        if names not in self._masks:
            # By numpy, since this is asked for while new tensors of torch are watched and moved.
            mask = np.zeros(len(self.on(HOST)), bool)
            for size, stride, start in (_distinct(self.places[name]) for name in names):
                np.lib.stride_tricks.as_strided(mask[start:], size, stride)[...] = True
            self._masks[names] = torch.from_numpy(mask)
        return self._masks[names]

    def on(self, device: torch.device) -> torch.Tensor:
        """The content on a device, to be read only."""
        if device not in self._copies:
            self._copies[device] = self.build(device)
        return self._copies[device]

    def fresh(self, device: torch.device, *, once: bool) -> dict[str, Guarded]:
        """The tensors in a buffer of their own on a device.

        ``once`` where nobody is likely to ask for them again, nor what they held at first: a GPU
        then gets no second copy.
        """
        buffer = self.build(device) if once and device != HOST else self.on(device).clone()
        return self.within(buffer, device)

    def within(self, buffer: torch.Tensor, device: torch.device) -> dict[str, Guarded]:
        """New tensors in such a buffer, by name; one tensor for all names of a place."""
        views = {where: view(buffer, where) for where in self.places.values()}
        return {
            name: Guarded(views[where], buffer, device, self, name)
            for name, where in self.places.items()
        }


@dataclass(frozen=True, eq=False)
class Guarded:
    """A tensor, and the buffer, 1-D, of it and its guards: of an input its whole storage."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    device: torch.device
    image: Image
    name: str

    @property
    def before(self) -> torch.Tensor:
        """What the buffer held at the start, to be read only; most runs need not ask."""
        return self.image.on(self.device)

    def changed(
        self, since: torch.Tensor | None = None, until: torch.Tensor | None = None
    ) -> Changed:
        """Buffer indices whose bits changed: (in the tensor, in the guards), on the host.

        ``since`` and ``until`` are copies of the buffer [as handed out, as it is now].
        """
        first = self.before if since is None else since
        last = self.buffer if until is None else until
        if alike(first, last):
            return NOWHERE, NOWHERE
        first = self.image.on(HOST) if since is None else since.to(HOST)
        differs = bits(first) != bits(last.to(HOST))
        guards = ~self.image.inside(*self.image.places)
        return tuple(  # type: ignore[return-value]
            (differs & part).nonzero().flatten() for part in (self.image.inside(self.name), guards)
        )

    def holds(self, address: int) -> bool:
        """Whether an element of the tensor lies at an address."""
        place = (address - self.buffer.data_ptr()) // self.buffer.element_size()
        return 0 <= place < len(self.buffer) and bool(self.image.inside(self.name)[place])

    def index(self, position: int) -> str:
        """The place of a guard element, in words, relative to the tensor."""
        own = self.image.inside(self.name)
        first, last = (int(i) for i in own.nonzero().flatten()[[0, -1]])
        if position < first:
            return f"{first - position} elements before its start"
        if position > last:
            return f"{position - last} elements past its end"
        return "between its rows"


def all_alike(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Whether the two of each pair have the same bits, all 1-D and on one device.

    A GPU is asked once, since it answers for all as fast as for one; on the host, and where they
    are large, nothing is copied.
    """
    if pairs[0][0].device == HOST:
        return all(alike(one, other) for one, other in pairs)
    if sum(one.nbytes for one, _ in pairs) > LARGE:
        return _alike_in_pieces(pairs)
    ones, others = (
        torch.cat([tensor.view(torch.uint8) for tensor in side])
        for side in zip(*pairs, strict=True)
    )
    return torch.equal(ones, others)


def _alike_in_pieces(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """The same, in memory of one piece of a tensor; asks once, too."""
    pieces = [zip(*(bits(tensor).split(LARGE) for tensor in pair), strict=True) for pair in pairs]
    differ = [(one != other).any() for pair in pieces for one, other in pair]
    return not torch.stack(differ).any()


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits."""
    return torch.equal(bits(one), bits(other))


NOWHERE = torch.zeros(0, dtype=torch.int64)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same width, so that NaN and -0 compare by their bits."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(width)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order as bytes, whatever the strides."""
    return bits(tensor.detach()).numpy().tobytes()


@dataclass(frozen=True)
class Part:
    """A tensor to be placed: its values on a device, and how they shall lie in memory.

    Equal parts are one tensor, which may have other names beside its own.
    """

    name: str
    size: tuple[int, ...]
    variant: str
    values: Callable[[torch.device], torch.Tensor]


def place(
    tensors: Iterable[tuple[str, Part]],
    dtype: torch.dtype,
    guard: int,
    *,
    between: int = 0,
    poison: bool = False,
    large: bool = False,
) -> Image:
    """Lay tensors out in one guarded buffer, each with the strides that its variant names.

    Several lie one after another, ``between`` elements apart, but those that are sliced are woven:
    their rows lie side by side, as in slices of one projection.  Names of equal parts are names of
    one tensor.  Guards of tables (``poison``) are NaN, since a read must show; all others are large
    finite numbers that differ from each other, since a NaN that is read, rotated and written back
    would keep its bits and hide the write.  A ``large`` buffer is made on each device itself and
    not sent there.
    """
    parts = dict(tensors)
    sliced = [part for part in dict.fromkeys(parts.values()) if part.variant == "sliced"]
    places, end = _woven(sliced, guard, between) if len(sliced) > 1 else ({}, guard)
    for part in parts.values():
        if part not in places:
            places[part] = _memory(part.size, part.variant, end)
            end = _end(places[part]) + between

    def build(device: torch.device) -> torch.Tensor:
        count = end + GAP + guard
        if poison:
            buffer = torch.full((count,), float("nan"), dtype=dtype, device=device)
        else:
            buffer = guard_values(count, dtype, device).clone()
        for part, where in places.items():
            distinct = _distinct(where)
            values = part.values(device)
            if distinct is not where:
                values = values[tuple(map(slice, distinct[0]))]
            buffer.as_strided(*distinct).copy_(values)
        return buffer

    named = {name: places[part] for name, part in parts.items()}
    # Without waiting, which is safe: this memory of the host is never written again.
    return Image(named, build if large else partial(build(HOST).to, non_blocking=True))


def view(buffer: torch.Tensor, where: Memory) -> torch.Tensor:
    """A tensor in the memory of a buffer that is no view of it for autograd."""
    size, stride, start = where
    alone = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
    return alone.set_(buffer.untyped_storage(), start, size, stride)


def _distinct(where: Memory) -> Memory:
    """The same elements, each once, of a tensor that is expanded along some axes."""
    size, stride, start = where
    if 0 not in stride:
        return where
    once = tuple(min(n, 1) if step == 0 else n for n, step in zip(size, stride, strict=True))
    return once, stride, start


def _end(where: Memory) -> int:
    """The element behind the last one of a tensor."""
    size, stride, start = where
    span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    return start + span if prod(size) else start


def _memory(size: tuple[int, ...], variant: str, start: int) -> Memory:
    """Sizes, strides and offset of a variant that may begin at ``start``."""
    if variant == "expanded":
        return size, (0,) * len(size), start
    order = list(range(len(size)))
    if variant == "transposed":
        order[:2] = order[1::-1]  # the two outer axes swap places in memory; a single one stays
    step = 2 if variant == "strided_last" else 1
    stride = [0] * len(size)
    for axis in reversed(order):
        stride[axis] = step
        width = size[axis] + (GAP if variant == "sliced" and axis == len(size) - 1 else 0)
        step *= max(width, 1)
    if variant == "expanded_heads":
        stride = [0 if axis == len(size) - 2 else n for axis, n in enumerate(stride)]
    return size, tuple(stride), start + {"offset": 1, "sliced": GAP // 2}.get(variant, 0)


def _woven(parts: list[Part], start: int, between: int) -> tuple[dict[Part, Memory], int]:
    """Places of tensors whose rows lie side by side, with a gap behind all, and where they end.

    A row is what one index of all leading axes leaves that the tensors have in common.
    """
    shared = zip(*(part.size[:-1] for part in parts), strict=False)
    leading = [sizes[0] for sizes in takewhile(lambda sizes: len(set(sizes)) == 1, shared)]
    width = sum(prod(part.size[len(leading) :]) + between for part in parts) + GAP
    places, lane = {}, start + GAP // 2
    for part in parts:
        row = part.size[len(leading) :]
        rows = [width * prod(leading[axis + 1 :]) for axis in range(len(leading))]
        lanes = [prod(row[axis + 1 :]) for axis in range(len(row))]
        places[part] = (part.size, (*rows, *lanes), lane)
        lane += prod(row) + between
    return places, start + width * prod(leading)


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
