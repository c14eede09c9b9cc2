"""The tensors of a case, each inside memory whose other elements must stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch

from .case import Case
from .contents import TABLES, dtype_of, random_values, table_of, values_of
from .guards import HOST, Guarded, Image, Part, place, tensor_bytes
from .rope_tables import BLOCK, Form, Rows, shaped
from .spec import OpSpec
from .storage import Arrangement, arrangement

Lent = Mapping[Image, Mapping[str, Guarded]]  # the tensors of buffers that are used once more
KEPT = 2**20  # elements of the largest image that is kept for other runs
GUARD = 64  # least guard elements on each side; a multiple keeps the alignment of real tensors


@dataclass(frozen=True)
class Inputs:
    """Everything a case hands to an op: keyword arguments, their buffers, incoming gradients.

    ``axes`` are those of :func:`dims`.  ``images`` holds what every further run of the case starts
    from too: by name, for incoming gradients with the shape and dtype that were asked for.
    """

    tensors: Mapping[str, Guarded]
    constants: Mapping[str, object]
    axes: Mapping[str, int]
    device: torch.device
    spec: OpSpec
    case: Case
    given: Mapping[str, torch.Tensor]
    images: dict[object, Image]
    tables: Mapping[str, Rows]

    def afresh(self, lent: Lent) -> Inputs:
        """The same inputs as they were at the start, in memory of their own but for what is lent
        to them."""
        fresh = _fresh(self.tensors, self.images, self.device, lent, once=bool(self.given))
        return replace(self, tensors=fresh)

    def values(self, form: Form | None = None) -> dict[str, torch.Tensor]:
        """The tensors as they were at the start, on the host, to be read only.

        ``form`` (a named function) is applied to all that do not hold integers.
        """
        return {name: self._value(name, form) for name in self.tensors}

    def _value(self, name: str, form: Form | None) -> torch.Tensor:
        if name in self.tables:
            return shaped(self.tables[name], form)
        tensor = self.images[name].tensor(name)
        return form(tensor) if form and tensor.is_floating_point() else tensor

    def digest(self) -> str:
        """SHA-256 over the name of every tensor and that of its bytes."""
        total = hashlib.sha256(self.case.id.encode())
        for name in self.tensors:
            if name in self.tables:
                own = self.tables[name].table.digest(self.tables[name].count)
            else:
                own = hashlib.sha256(tensor_bytes(self.images[name].tensor(name))).digest()
            total.update(name.encode() + own)
        return total.hexdigest()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that no later launch can change."""
    return tensor.detach().to(HOST, copy=True)


def all_on_host(
    tensors: Mapping[str, torch.Tensor], device: torch.device
) -> dict[str, torch.Tensor]:
    """Copies that no later launch can change, taken in the order of the current stream; when they
    are returned, all work on the device is done."""
    copies = {
        name: tensor.detach().to(HOST, copy=True, non_blocking=True)
        for name, tensor in tensors.items()
    }
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return copies


def build_inputs(
    spec: OpSpec,
    case: Case,
    device: torch.device,
    given: Mapping[str, torch.Tensor] | None = None,
    lent: Lent = {},  # noqa: B006  # nobody writes it
) -> Inputs:
    """Fresh tensors of a case on a device; the same case always gives the same bits.

    ``given`` replaces the values of tensors and incoming gradients (``<output>.grad``) by name: a
    relation between two cases hands one the data of the other, which nobody may write afterwards.
    ``lent`` are buffers that it may use where it needs the same.
    """
    given = given or {}
    axes = dims(case)
    guard = _guard_elements(case, axes)
    parts = _parts(spec, case, axes, given)
    tables = {n: part.values for n, part in parts.items() if isinstance(part.values, Rows)}
    images = _images(spec, case, parts, tables, guard)
    constants = {name: axes[axis] for name, axis in spec.arguments.items()} | dict(case.flags)
    if len(spec.cp_sizes) > 1 and case.layout == "thd":
        constants |= {"cp_rank": case.cp_rank, "cp_size": case.cp_size}
    tensors = _fresh(parts, images, device, lent, once=bool(given))
    return Inputs(tensors, constants, axes, device, spec, case, given, images, tables)


def incoming_gradient(
    inputs: Inputs, name: str, shape: Sequence[int], dtype: torch.dtype
) -> Guarded:
    """The random incoming gradient of output ``name``, with the strides the case asks for."""
    image = _gradient(inputs, name, tuple(shape), dtype)
    return image.fresh(inputs.device, once=bool(inputs.given))[name]


def gradient_values(
    inputs: Inputs, name: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The same incoming gradient on the host, to be read only."""
    return _gradient(inputs, name, tuple(shape), dtype).tensor(name)


def _gradient(inputs: Inputs, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Image:
    key = (f"{name}.grad", shape, dtype)
    if key not in inputs.images:
        values = inputs.given.get(key[0])
        if values is None:
            values = random_values(inputs.spec, inputs.case, key[0], shape)
        guard = _guard_elements(inputs.case, inputs.axes)
        part = Part(name, shape, inputs.case.variants[key[0]], values.to)
        inputs.images[key] = _placed(((name, part),), dtype, guard)
    return inputs.images[key]


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
    return tuple(
        sum(int(name) if name.isdigit() else axes[name] for name in names)
        for names in _named(shape, layout)
    )


def begins_with(shape: str, words: str, layout: str) -> bool:
    """Whether a row of axis names begins with those of ``words``; in thd and plain, ``tokens`` are
    ``rows``."""
    wanted = _named(words, layout)
    return _named(shape, layout)[: len(wanted)] == wanted


@lru_cache(maxsize=256)
def _named(shape: str, layout: str) -> list[list[str]]:
    """The axes that make each size."""
    rows = {"sbhd": "seq batch", "bshd": "batch seq"}.get(layout, "tokens")
    words = " ".join(rows if word == "rows" else word for word in shape.split()).split()
    return [word.split("+") for word in words]


def _guard_elements(case: Case, axes: Mapping[str, int]) -> int:
    """Enough guard for a whole tile of heads of the widest row past the end."""
    tile = max([value or 0 for value in case.tile.values()], default=0)
    row = sum(value for name, value in axes.items() if name.endswith("dim"))
    return GUARD * (2 + (max(tile, 16) * row) // GUARD)


def _images(
    spec: OpSpec, case: Case, parts: Mapping[str, Part], tables: Mapping[str, Rows], guard: int
) -> dict[object, Image]:
    """The image that each tensor lies in, by name; those of one storage have one."""
    inputs = {item.name: item for item in spec.inputs}
    images: dict[object, Image] = {}
    shared = arrangement(case) or Arrangement()
    for names in _storages(spec, case, parts):
        first = inputs[names[0]]
        image = _placed(
            tuple((name, parts[name]) for name in names[:: -1 if shared.last_first else 1]),
            dtype_of(first, case),
            guard,
            between=shared.between,
            poison=first.kind in TABLES,
            large=first.name in tables and tables[first.name].count >= BLOCK,
        )
        images |= dict.fromkeys(names, image)
    return images


def _placed(parts: tuple[tuple[str, Part], ...], *how: Any, **more: Any) -> Image:
    """One image for all runs that ask for the same, unless it is too large to be kept."""
    once = sum(prod(part.size) for _, part in parts) <= KEPT
    return (_placed_once if once else place)(parts, *how, **more)


_placed_once = lru_cache(maxsize=32)(place)  # more than all runs of a case need


def _fresh(
    names: Iterable[str],
    images: Mapping[object, Image],
    device: torch.device,
    lent: Lent,
    *,
    once: bool,
) -> dict[str, Guarded]:
    """The tensors by name; those of one storage in one buffer."""
    wanted = dict.fromkeys(images[name] for name in names)
    made = {image: lent.get(image) or image.fresh(device, once=once) for image in wanted}
    return {name: made[images[name]][name] for name in names}


def _parts(
    spec: OpSpec,
    case: Case,
    axes: Mapping[str, int],
    given: Mapping[str, torch.Tensor],
) -> dict[str, Part]:
    """The tensors of a case by name."""
    parts: dict[str, Part] = {}
    for item in spec.inputs:
        variant = case.variants.get(item.name, "contiguous")
        size = shape_of(item.shape, case.layout, axes)
        values = given.get(item.name)
        if values is None and item.kind in TABLES:
            rows = Rows(table_of(item, case, size), size)
            parts[item.name] = Part(item.name, size, variant, rows)
            continue
        if values is None:
            values = values_of(spec, item, case, size, axes)
        if values is not None:
            parts[item.name] = Part(item.name, tuple(values.shape), variant, values.to)
    if case.variants.get("storage") == "shared" and case.layout == "thd":
        parts |= _equal_offsets(spec, case, parts)
    return parts


def _equal_offsets(spec: OpSpec, case: Case, parts: Mapping[str, Part]) -> dict[str, Part]:
    """Offsets that are equal as one tensor, those of padded rows too where there is no padding."""
    kinds = ("cu_seqlens",) if any(case.gaps) else ("cu_seqlens", "cu_seqlens_padded")
    equal = [item.name for item in spec.inputs if item.kind in kinds]
    first = next((parts[name] for name in equal if name in parts), None)
    return {name: first for name in equal if first is not None}


def _storages(spec: OpSpec, case: Case, parts: Mapping[str, Part]) -> list[list[str]]:
    """Names of the tensors that lie in one storage: all data, the tables, one tensor of two names;
    each by itself where the case does not ask for more."""
    if case.variants.get("storage") != "shared":
        return [[name] for name in parts]
    kinds = {item.name: item.kind for item in spec.inputs}
    groups: dict[object, list[str]] = {}
    for name, part in parts.items():
        kind = {"cos": "table", "sin": "table", "data": "data"}.get(kinds[name])
        groups.setdefault(kind or part, []).append(name)
    return list(groups.values())
