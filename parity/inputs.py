"""The tensors of a case, each inside memory whose other elements must stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch

from .case import Case
from .guards import HOST, Guarded, Image, place, tensor_bytes
from .rope_tables import BLOCK, Form, Table, place_far
from .spec import Input, OpSpec
from .values import floats, integers

GUARD = 64  # least guard elements on each side; a multiple keeps the alignment of real tensors


@dataclass(frozen=True)
class Inputs:
    """Everything a case hands to an op: keyword arguments, their buffers, incoming gradients.

    ``images`` holds what every further run of the case starts from too: by name, for incoming
    gradients with the shape and dtype that were asked for.
    """

    tensors: Mapping[str, Guarded]
    constants: Mapping[str, object]
    rows: Mapping[str, int]
    device: torch.device
    spec: OpSpec
    case: Case
    given: Mapping[str, torch.Tensor]
    images: dict[object, Image]
    far: Mapping[str, Table]

    def afresh(self) -> Inputs:
        """The same inputs as they were at the start, in memory of their own."""
        fresh = {name: self.images[name].fresh(self.device) for name in self.tensors}
        return replace(self, tensors=fresh)

    def values(self, form: Form | None = None) -> dict[str, torch.Tensor]:
        """The tensors as they were at the start, on the host, to be read only.

        ``form`` (a named function) is applied to all that do not hold integers.
        """
        return {name: self._value(name, form) for name in self.tensors}

    def _value(self, name: str, form: Form | None) -> torch.Tensor:
        if name in self.far:
            size = self.images[name].where[0]
            return self.far[name].rows(prod(size[:-1]), form).view(size)
        tensor = self.images[name].tensor
        return form(tensor) if form and tensor.is_floating_point() else tensor

    def digest(self) -> str:
        """SHA-256 over the name of every tensor and that of its bytes."""
        total = hashlib.sha256(self.case.id.encode())
        for name in self.tensors:
            if name in self.far:
                own = self.far[name].digest(prod(self.images[name].where[0][:-1]))
            else:
                own = hashlib.sha256(tensor_bytes(self.images[name].tensor)).digest()
            total.update(name.encode() + own)
        return total.hexdigest()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that no later launch can change."""
    return tensor.detach().to(HOST, copy=True)


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
    far = _far_tables(spec, case, axes, given)
    images: dict[object, Image] = {}
    for item in spec.inputs:
        variant = case.variants.get(item.name, "contiguous")
        if item.name in far:
            size = shape_of(item.shape, case.layout, axes)
            images[item.name] = place_far(far[item.name], size, variant, guard)
            continue
        values = given[item.name] if item.name in given else _values(spec, item, case, axes)
        if values is not None:
            poison = item.kind in ("cos", "sin")
            images[item.name] = place(values, _dtype(item, case), variant, guard, poison=poison)
    constants = {name: axes[axis] for name, axis in spec.arguments.items()} | dict(case.flags)
    if len(spec.cp_sizes) > 1 and case.layout == "thd":
        constants |= {"cp_rank": case.cp_rank, "cp_size": case.cp_size}
    tensors = {str(name): image.fresh(device) for name, image in images.items()}
    return Inputs(tensors, constants, axes, device, spec, case, given, images, far)


def incoming_gradient(
    inputs: Inputs, name: str, shape: Sequence[int], dtype: torch.dtype
) -> Guarded:
    """The random incoming gradient of output ``name``, with the strides the case asks for."""
    return _gradient(inputs, name, tuple(shape), dtype).fresh(inputs.device)


def gradient_values(
    inputs: Inputs, name: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The same incoming gradient on the host, to be read only."""
    return _gradient(inputs, name, tuple(shape), dtype).tensor


def _gradient(inputs: Inputs, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Image:
    key = (f"{name}.grad", shape, dtype)
    if key not in inputs.images:
        values = inputs.given.get(key[0])
        if values is None:
            values = _random(inputs.spec, inputs.case, key[0], shape)
        guard = _guard_elements(inputs.case, inputs.rows)
        inputs.images[key] = place(values, dtype, inputs.case.variants[key[0]], guard)
    return inputs.images[key]


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


def _far_tables(
    spec: OpSpec, case: Case, axes: Mapping[str, int], given: Mapping[str, torch.Tensor]
) -> dict[str, Table]:
    """The tables of so many rows that they are worth sharing."""
    tables = [item for item in spec.inputs if item.kind in ("cos", "sin")]
    sizes = {item.name: shape_of(item.shape, case.layout, axes) for item in tables}
    return {
        item.name: _table(item, case, sizes[item.name])
        for item in tables
        if item.name not in given and prod(sizes[item.name][:-1]) >= BLOCK
    }


def _values(spec: OpSpec, item: Input, case: Case, axes: Mapping[str, int]) -> torch.Tensor | None:
    if item.kind in ("cos", "sin"):
        size = shape_of(item.shape, case.layout, axes)
        return _table(item, case, size).rows(prod(size[:-1])).view(size)
    if item.kind != "data":
        return packing(item.kind, case, axes)
    return _random(spec, case, item.name, shape_of(item.shape, case.layout, axes))


def _table(item: Input, case: Case, size: tuple[int, ...]) -> Table:
    return Table(item.kind, case.halves, size[-1], _dtype(item, case))


def packing(kind: str, case: Case, axes: Mapping[str, int]) -> torch.Tensor | None:
    """Offsets or positions of a case, int64; None where it passes none.  ``axes`` are its dims."""
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
