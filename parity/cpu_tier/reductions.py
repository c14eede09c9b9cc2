"""`tl.reduce` and `tl.associative_scan` over blocks with a leading program axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle, _get_np_dtype

from ..interpreter import fold
from .memory import Array


def _tensor(data: Array, dtype: Any) -> Any:
    """A Triton tensor from `[P, ...]`; the type has the shape of one program's block."""
    handle = TensorHandle(data.astype(_get_np_dtype(dtype), copy=False), dtype.scalar)
    return tl.tensor(handle, tl.block_type(dtype, list(data.shape[1:])) if data.ndim > 1 else dtype)


def _position(axis: Any, ndim: int) -> int:
    """The array axis of a block axis, which may be negative or a constexpr."""
    return int(getattr(axis, "value", axis)) % ndim + 1


def _combine(function: Any, left: tuple[Array, ...], right: tuple[Array, ...], kinds: Any) -> Any:
    """One step of a combine function on two tuples of `[P, ...]`."""
    pairs = zip((*left, *right), kinds * 2, strict=True)
    result = function.fn(*(_tensor(data, kind) for data, kind in pairs))
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(part.handle.data.astype(old.dtype) for part, old in zip(parts, left, strict=True))


class BatchedReduce(ReduceOps):  # type: ignore[misc]
    """Reduce along an axis of each program's block; axis None reduces the whole block."""

    def apply_impl(self, input: Any) -> Any:
        ndim, kinds = len(input[0].shape), tuple(part.dtype for part in input)
        data = [self._last(part.handle.data, ndim) for part in input]
        results, kinds = self._reduced(data, kinds)
        return [
            _tensor(self._shaped(result, ndim), kind)
            for result, kind in zip(results, kinds, strict=True)
        ]

    def _last(self, data: Array, ndim: int) -> Array:
        """The axis to reduce moved to the end: `[P, ..., n]`."""
        if self.axis is None:
            return data.reshape(len(data), -1)
        return np.moveaxis(data, _position(self.axis, ndim), -1)

    def _shaped(self, result: Array, ndim: int) -> Array:
        if not self.keep_dims:
            return result
        if self.axis is None:
            return result.reshape(len(result), *(1,) * ndim)
        return np.expand_dims(result, _position(self.axis, ndim))

    def _reduced(self, data: list[Array], kinds: Any) -> tuple[list[Array], Any]:
        """Results `[P, ...]` and their Triton types."""
        library, values = tl.standard, data[0]
        if self.combine_fn == library._sum_combine:
            return [fold(values)], kinds
        if self.combine_fn == library._elementwise_max:
            return [np.nanmax(values, axis=-1)], kinds
        if self.combine_fn == library._elementwise_min:
            return [np.nanmin(values, axis=-1)], kinds
        if self.combine_fn == library._argmax_combine_tie_break_left:
            return [values.max(axis=-1), values.argmax(axis=-1)], (kinds[0], tl.int32)
        if self.combine_fn == library._argmin_combine_tie_break_left:
            return [values.min(axis=-1), values.argmin(axis=-1)], (kinds[0], tl.int32)
        return list(self._step_by_step(data, kinds)), kinds

    def _step_by_step(self, data: list[Array], kinds: Any) -> tuple[Array, ...]:
        total = tuple(part[..., 0] for part in data)
        for step in range(1, data[0].shape[-1]):
            total = _combine(self.combine_fn, total, tuple(p[..., step] for p in data), kinds)
        return total


class BatchedScan(ScanOps):  # type: ignore[misc]
    """Scan along an axis of each program's block, from the end where `reverse`."""

    def apply_impl(self, input: Any) -> Any:
        kinds = tuple(part.dtype for part in input)
        axis = _position(self.axis, len(input[0].shape))
        data = [np.moveaxis(part.handle.data, axis, 0) for part in input]
        if self.reverse:
            data = [part[::-1] for part in data]
        results = self._scanned(data, kinds)
        if self.reverse:
            results = [part[::-1] for part in results]
        moved = (np.moveaxis(part, 0, axis) for part in results)
        return [_tensor(part, kind) for part, kind in zip(moved, kinds, strict=True)]

    def _scanned(self, data: list[Array], kinds: Any) -> list[Array]:
        if self.combine_fn == tl.standard._sum_combine:
            return [np.cumsum(data[0], axis=0, dtype=data[0].dtype)]
        if self.combine_fn == tl.standard._prod_combine:
            return [np.cumprod(data[0], axis=0, dtype=data[0].dtype)]
        rows = [tuple(part[0] for part in data)]
        for step in range(1, len(data[0])):
            rows.append(_combine(self.combine_fn, rows[-1], tuple(p[step] for p in data), kinds))
        return [np.stack(column) for column in zip(*rows, strict=True)]
