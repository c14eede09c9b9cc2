"""Tables of cos and sin.  Cases share their rows: a table of far positions has 100,000 of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .guards import HOST, tensor_bytes
from .values import table_angles

if TYPE_CHECKING:
    from hashlib import _Hash

BLOCK = 1024  # rows of a far table are made, kept and hashed by whole blocks
FEW = 32  # rows of a shorter table are made by powers of two from here, so that cases share them
Form = Callable[[torch.Tensor], torch.Tensor]


class Table(NamedTuple):
    """Everything but the number of rows, which all begin alike."""

    kind: str
    halves: str
    lanes: int
    dtype: torch.dtype

    def rows(self, count: int, form: Form | None = None) -> torch.Tensor:
        """The first ``count`` rows, of what ``form`` (a named function) makes of them; to be read
        only, [count, lanes]."""
        if count < BLOCK:
            return _few(self, max(FEW, 1 << (count - 1).bit_length()), form)[:count]
        return _rows(self, -(-count // BLOCK), form)[:count]

    def on(self, count: int, device: torch.device) -> torch.Tensor:
        """The first ``count`` rows on a device, to be read only, [count, lanes]."""
        if device == HOST:
            return self.rows(count)
        return _copied(self, -(-count // BLOCK), device)[:count]

    def digest(self, count: int) -> bytes:
        """SHA-256 of the first ``count`` rows."""
        blocks = count // BLOCK
        total = _hashed(self, blocks).copy()
        total.update(tensor_bytes(self.rows(count)[blocks * BLOCK :]))
        return total.digest()


@dataclass(frozen=True)
class Rows:
    """The first rows of a table, as many as ``size`` holds and in that shape, on any device."""

    table: Table
    size: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many."""
        return prod(self.size[:-1])

    def __call__(self, device: torch.device) -> torch.Tensor:
        return self.table.on(self.count, device).view(self.size)


@lru_cache(maxsize=32)  # all runs of a case ask for the same
def shaped(rows: Rows, form: Form | None) -> torch.Tensor:
    """What ``form`` makes of the rows, on the host, to be read only."""
    return rows.table.rows(rows.count, form).view(rows.size)


@lru_cache(maxsize=256)
def _few(table: Table, count: int, form: Form | None) -> torch.Tensor:
    return _made(table, count, form)


@lru_cache(maxsize=64)
def _rows(table: Table, blocks: int, form: Form | None) -> torch.Tensor:
    return _made(table, blocks * BLOCK, form)


def _made(table: Table, count: int, form: Form | None) -> torch.Tensor:
    if form is not None:
        return form(table.rows(count))
    angles = table_angles(count, table.lanes, table.halves)
    values = np.cos(angles) if table.kind == "cos" else np.sin(angles)
    return torch.from_numpy(values).to(table.dtype)


@lru_cache(maxsize=64)
def _copied(table: Table, blocks: int, device: torch.device) -> torch.Tensor:
    return _rows(table, blocks, None).to(device)


@lru_cache(maxsize=64)
def _hashed(table: Table, blocks: int) -> _Hash:
    return hashlib.sha256(tensor_bytes(table.rows(blocks * BLOCK)))
