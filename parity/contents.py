"""What the tensors of a case hold: values by their kind, dtype and seed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np
import torch

from .case import Case
from .rope_tables import Table
from .spec import Input, OpSpec
from .values import floats, integers

TABLES = ("cos", "sin")


def values_of(
    spec: OpSpec, item: Input, case: Case, size: tuple[int, ...], axes: Mapping[str, int]
) -> torch.Tensor | None:
    """The values of an input that is no table, and has this size unless it is packing; None where
    it is absent."""
    if item.kind != "data":
        return packing(item.kind, case, axes)
    return random_values(spec, case, item.name, size)


def table_of(item: Input, case: Case, size: tuple[int, ...]) -> Table:
    """What a table of cos or sin holds."""
    return Table(item.kind, case.halves, size[-1], dtype_of(item, case))


def random_values(spec: OpSpec, case: Case, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of a data tensor or gradient, float64; equal along the axes it is expanded over."""
    regime, variant = case.variants["values"], case.variants[name]
    values = floats(
        case.seed, name, prod(shape), regime, case.dtype, sums=bool(spec.sums or spec.rounded_sums)
    )
    values = values.reshape(shape)
    if variant == "expanded" and values.any():
        values = np.broadcast_to(values.flat[np.flatnonzero(values)[0]], shape).copy()
    if variant == "expanded_heads" and len(shape) > 1:
        values = np.broadcast_to(values[..., :1, :], shape).copy()
    return torch.from_numpy(values)


def dtype_of(item: Input, case: Case) -> torch.dtype:
    """The dtype of an input."""
    if item.kind in ("cu_seqlens", "cu_seqlens_padded"):
        return getattr(torch, case.variants["cu_seqlens"])  # type: ignore[no-any-return]
    if item.kind == "position_ids":
        return getattr(torch, case.variants["position_ids"])  # type: ignore[no-any-return]
    name = case.dtype
    if item.kind in TABLES and case.table_dtype != "storage":
        name = case.table_dtype
    return getattr(torch, name)  # type: ignore[no-any-return]


def packing(kind: str, case: Case, axes: Mapping[str, int]) -> torch.Tensor | None:
    """Offsets or positions of a case, int64, to be read only; None where it passes none.  ``axes``
    are its dims."""
    if case.layout != "thd":
        return None
    if kind == "cu_seqlens":
        return _offsets(case.lengths)
    if kind == "cu_seqlens_padded":
        padded = (length + gap for length, gap in zip(case.lengths, case.gaps, strict=True))
        return _offsets(tuple(padded)) if any(case.gaps) else None
    if case.variants["position_ids"] == "absent":
        return None
    return _positions(case.seed, kind, axes["tokens"], axes["positions"])


@lru_cache(maxsize=32)  # all runs of a case ask for the same
def _offsets(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(np.cumsum([0, *lengths]))


@lru_cache(maxsize=32)
def _positions(seed: int, name: str, tokens: int, positions: int) -> torch.Tensor:
    return torch.from_numpy(integers(seed, name, tokens, positions))
