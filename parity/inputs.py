"""The tensors of a case, each inside memory whose other elements must stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod

import numpy as np
import torch

from .case import Case
from .spec import Input, OpSpec
from .values import floats, integers, table_angles

GUARD = 64  # least guard elements on each side; a multiple keeps the alignment of real tensors
GAP = 8  # guard elements between the rows of a sliced tensor
HOST = torch.device("cpu")  # where all but the candidate runs: small tensors are slow on a GPU


@dataclass(frozen=True)
class Guarded:
    """A tensor and the buffer it lies in.

    ``buffer`` is the whole storage, 1-D; ``inside``, on the host, marks the elements that belong to
    ``tensor``; everything else is a guard.  ``before`` is a copy of the buffer at the start.
    """

    tensor: torch.Tensor
    buffer: torch.Tensor
    inside: torch.Tensor
    before: torch.Tensor

    def changed(
        self, since: torch.Tensor | None = None, until: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Buffer indices whose bits changed: (in the tensor, in the guards), on the host.

        ``since`` and ``until`` are copies of the buffer [as handed out, as it is now].
        """
        first = self.before if since is None else since
        last = self.buffer if until is None else until
        differs = bits(last.to(HOST)) != bits(first.to(HOST))
        return (differs & self.inside).nonzero().flatten(), (
            differs & ~self.inside
        ).nonzero().flatten()

    def index(self, position: int) -> str:
        """The place of a guard element, in words, relative to the tensor."""
        first, last = (int(i) for i in self.inside.nonzero().flatten()[[0, -1]])
        if position < first:
            return f"{first - position} elements before its start"
        if position > last:
            return f"{position - last} elements past its end"
        return "between its rows"


@dataclass(frozen=True)
class Inputs:
    """Everything a case hands to an op: keyword arguments, their buffers, incoming gradients."""

    tensors: Mapping[str, Guarded]
    constants: Mapping[str, object]
    rows: Mapping[str, int]
    device: torch.device
    spec: OpSpec
    case: Case
    given: Mapping[str, torch.Tensor]

    def digest(self) -> str:
        """SHA-256 over the bytes of every tensor, by name."""
        total = hashlib.sha256(self.case.to_json().encode())
        for name, item in self.tensors.items():
            total.update(name.encode() + tensor_bytes(item.tensor))
        return total.hexdigest()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers of the same width, so that NaN and -0 compare by their bits."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(width)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that no later launch can change."""
    return tensor.detach().to(HOST, copy=True)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order as bytes, whatever the strides."""
    # not contiguous(): with one element any stride passes for contiguous and stays
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def build_inputs(
    spec: OpSpec,
    case: Case,
    device: torch.device,
    given: Mapping[str, torch.Tensor] | None = None,
) -> Inputs:
    """Fresh tensors of a case on a device; the same case always gives the same bits.

    ``given`` replaces the values of tensors and incoming gradients (``<output>.grad``) by name: a
    relation between two cases hands one the data of the other.
    """
    given = given or {}
    axes = dims(case)
    guard = _guard_elements(case, axes)
    tensors = {}
    for item in spec.inputs:
        values = given[item.name] if item.name in given else _values(spec, item, case, axes)
        if values is not None:
            variant = case.variants.get(item.name, "contiguous")
            poison = item.kind in ("cos", "sin")
            tensors[item.name] = place(
                values, _dtype(item, case), variant, guard, device, poison=poison
            )
    constants = {name: axes[axis] for name, axis in spec.arguments.items()} | dict(case.flags)
    if len(spec.cp_sizes) > 1 and case.layout == "thd":
        constants |= {"cp_rank": case.cp_rank, "cp_size": case.cp_size}
    return Inputs(tensors, constants, axes, device, spec, case, given)


def incoming_gradient(
    inputs: Inputs, name: str, shape: Sequence[int], dtype: torch.dtype
) -> Guarded:
    """The random incoming gradient of output ``name``, with the strides the case asks for."""
    variant = inputs.case.variants[f"{name}.grad"]
    values = inputs.given.get(f"{name}.grad")
    if values is None:
        values = _random(inputs.spec, inputs.case, f"{name}.grad", tuple(shape))
    guard = _guard_elements(inputs.case, inputs.rows)
    return place(values, dtype, variant, guard, inputs.device)


def _random(spec: OpSpec, case: Case, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of a data tensor or gradient, float64; equal along the axes it is expanded over."""
    regime, variant = case.variants["values"], case.variants[name]
    values = floats(
        case.seed, name, prod(shape), regime, case.dtype, sums=bool(spec.sums or spec.rounded_sums)
    )
    values = values.reshape(shape)
    if variant == "expanded" and values.any():
        values = np.broadcast_to(values.flat[np.flatnonzero(values)[0]], shape).copy()
    if variant == "expanded_heads":
        values = np.broadcast_to(values[..., :1, :], shape).copy()
    return torch.from_numpy(values)


def dims(case: Case) -> dict[str, int]:
    """Every axis of a case by name, with ``tokens`` and ``positions`` worked out."""
    axes = dict(case.axes)
    if case.layout == "thd":
        axes["tokens"] = (sum(case.lengths) + sum(case.gaps)) // case.cp_size + case.tail
        whole = case.flags.get("whole_pack_table", False)
        axes["positions"] = sum(case.lengths) if whole else max(case.lengths)
    elif case.layout == "plain":
        axes["positions"] = axes["tokens"]
    else:
        axes["positions"] = axes["seq"]
    axes["positions"] += axes.get("spare_positions", 0)
    return axes


def rows_in_sequences(case: Case) -> torch.Tensor:
    """Whether a row of a thd case belongs to a sequence, bool [tokens]."""
    inside = torch.zeros(dims(case)["tokens"], dtype=torch.bool)
    start = 0
    for length, gap in zip(case.lengths, case.gaps, strict=True):
        inside[start : start + length // case.cp_size] = True
        start += (length + gap) // case.cp_size
    return inside


def shape_of(shape: str, layout: str, axes: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes behind a row of axis names such as ``"rows heads nope_dim+rope_dim"``."""
    rows = {"sbhd": "seq batch", "bshd": "batch seq"}.get(layout, "tokens")
    words = " ".join(rows if word == "rows" else word for word in shape.split()).split()
    return tuple(
        sum(int(name) if name.isdigit() else axes[name] for name in word.split("+"))
        for word in words
    )


def place(
    values: torch.Tensor,
    dtype: torch.dtype,
    variant: str,
    guard: int,
    device: torch.device,
    *,
    poison: bool = False,
) -> Guarded:
    """Lay ``values`` out in a guarded buffer with the strides that ``variant`` names.

    Guards of tables (``poison``) are NaN, since a read must show; all others are large finite
    numbers that differ from each other, since a NaN that is read, rotated and written back would
    keep its bits and hide the write.
    """
    size, stride, lead = _strides(tuple(values.shape), variant)
    span = (
        1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0
    )
    count = 2 * guard + lead + span + GAP
    if poison:
        buffer = torch.full((count,), float("nan"), dtype=dtype)
    else:
        buffer = guard_values(count, dtype, HOST)
    inside = torch.zeros(buffer.numel(), dtype=torch.bool)
    once = tuple(slice(0, 1 if step == 0 else n) for n, step in zip(size, stride, strict=True))
    inside.as_strided(values[once].shape, stride, guard + lead).fill_(True)
    buffer.as_strided(values[once].shape, stride, guard + lead).copy_(values[once])
    used = buffer.to(device, copy=True)
    tensor = torch.empty(0, dtype=dtype, device=device).set_(
        used.untyped_storage(), guard + lead, size, stride
    )
    return Guarded(tensor, used, inside, buffer)


def _strides(size: tuple[int, ...], variant: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes, strides and extra storage offset of a variant."""
    if variant == "expanded":
        return size, (0,) * len(size), 0
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
    return size, tuple(stride), {"offset": 1, "sliced": GAP // 2}.get(variant, 0)


def guard_values(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Large numbers that repeat only after 97 elements: a row shifted into a guard must show."""
    return _guard_pattern(1 << count.bit_length(), dtype, device)[:count].clone()


@cache
def _guard_pattern(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not dtype.is_floating_point:
        value = 2**30 if dtype.itemsize >= 4 else 1
        return torch.full((count,), value, dtype=dtype, device=device)
    base = 2.0**14 if dtype == torch.float16 else 2.0**60
    steps = 1 + torch.arange(count, dtype=torch.float32, device=device) % 97 / 128
    return (base * steps).to(dtype)


def _guard_elements(case: Case, axes: Mapping[str, int]) -> int:
    """Enough guard for a whole tile of heads of the widest row past the end."""
    tile = max([value or 0 for value in case.tile.values()], default=0)
    row = sum(value for name, value in axes.items() if name.endswith("dim"))
    return GUARD * (2 + (max(tile, 16) * row) // GUARD)


def _dtype(item: Input, case: Case) -> torch.dtype:
    if item.kind in ("cu_seqlens", "cu_seqlens_padded"):
        return getattr(torch, case.variants["cu_seqlens"])  # type: ignore[no-any-return]
    if item.kind == "position_ids":
        return getattr(torch, case.variants["position_ids"])  # type: ignore[no-any-return]
    name = case.dtype
    if item.kind in ("cos", "sin") and case.table_dtype != "storage":
        name = case.table_dtype
    return getattr(torch, name)  # type: ignore[no-any-return]


def _values(spec: OpSpec, item: Input, case: Case, axes: Mapping[str, int]) -> torch.Tensor | None:
    if item.kind in ("cos", "sin"):
        size = shape_of(item.shape, case.layout, axes)
        return _table(prod(size[:-1]), size[-1], case.halves, item.kind).view(size)
    if item.kind != "data":
        return _packing(item.kind, case, axes)
    return _random(spec, case, item.name, shape_of(item.shape, case.layout, axes))


@lru_cache(maxsize=8)  # every run of a case asks again; whoever gets it copies it
def _table(positions: int, rope_dim: int, halves: str, kind: str) -> torch.Tensor:
    angles = table_angles(positions, rope_dim, halves)
    return torch.from_numpy(np.cos(angles) if kind == "cos" else np.sin(angles))


def _packing(kind: str, case: Case, axes: Mapping[str, int]) -> torch.Tensor | None:
    if case.layout != "thd":
        return None
    if kind == "cu_seqlens":
        return torch.from_numpy(np.cumsum([0, *case.lengths]))
    if kind == "cu_seqlens_padded":
        padded = np.add(case.lengths, case.gaps)
        return torch.from_numpy(np.cumsum([0, *padded])) if any(case.gaps) else None
    if case.variants["position_ids"] == "absent":
        return None
    return torch.from_numpy(integers(case.seed, kind, axes["tokens"], axes["positions"]))
