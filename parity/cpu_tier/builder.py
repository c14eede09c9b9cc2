"""Triton's interpreter operations over many programs at once.

Every array carries one leading axis: programs. It has length P where the value depends on the
program, and length 1 where it does not, so a block of `[M, N]` is `[P, M, N]` or `[1, M, N]` and a
scalar `[P]` or `[1]`. Elementwise operations need no change, since numpy broadcasts the leading
axis; the operations below name an axis or a shape, or touch memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from .divergence import NotCovered
from .memory import Array, Memory

ARGUMENT = "parity.argument"  # attribute of a pointer: the tensor argument it was made from


class BatchedBuilder(InterpreterBuilder):  # type: ignore[misc]
    """The interpreter's builder, computing a whole set of programs in each operation."""

    programs: Array  # [P, 3], int32: the grid indices of the programs that run now
    memory: Memory

    def create_get_program_id(self, axis: int) -> Any:
        return TensorHandle(self.programs[:, axis], tl.int32)

    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *_: Any) -> Any:
        element = ptrs.get_element_ty()
        dtype = interpreter._get_np_dtype(element)
        fill = np.zeros((), dtype) if other is None else other.data
        addresses, on, fill = np.broadcast_arrays(ptrs.data, mask.data, fill)
        loaded = self.memory.load(addresses, on, fill, dtype, ptrs.attr.get(ARGUMENT))
        return TensorHandle(loaded, element)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: Any) -> None:
        addresses, on, values = np.broadcast_arrays(ptrs.data, mask.data, value.data)
        self.memory.store(addresses, on, values, ptrs.attr.get(ARGUMENT))

    def create_atomic_rmw(self, operation: Any, ptr: Any, value: Any, mask: Any, *how: Any) -> Any:
        if len(self.programs) > 1:
            raise NotCovered("atomic_rmw")  # the order of programs is part of the result
        argument = ptr.attr.get(ARGUMENT)
        arrays = np.broadcast_arrays(ptr.data, mask.data, value.data)
        # The native function reads the buffers as they lie in memory.
        addresses, on, values = map(np.ascontiguousarray, arrays)
        on = self.memory.atomic(addresses, on, values.dtype, argument)
        handles = _like(ptr, addresses), _like(value, values), _like(mask, on)
        return super().create_atomic_rmw(operation, *handles, *how)

    def create_addptr(self, ptr: Any, offset: Any) -> Any:
        moved = super().create_addptr(ptr, offset)
        moved.attr = ptr.attr
        return moved

    def create_barrier(self) -> None:
        self.memory.barrier()

    def create_make_range(self, kind: Any, start: int, stop: int) -> Any:
        return TensorHandle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        return _like(arg, arg.data.reshape(len(arg.data), *shape))

    def create_trans(self, arg: Any, perm: Any) -> Any:
        return _like(arg, np.transpose(arg.data, (0, *(axis + 1 for axis in perm))))

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        return _like(arg, np.expand_dims(arg.data, axis + 1))

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        return _like(arg, np.broadcast_to(arg.data, (len(arg.data), *shape)))

    def create_splat(self, kind: Any, arg: Any) -> Any:
        ones = (1,) * len(kind.shape)
        first = arg.data.reshape(len(arg.data), -1)[:, 0].reshape(-1, *ones)
        return _like(arg, np.broadcast_to(first, (len(first), *kind.shape)))

    def create_unsplat(self, arg: Any) -> Any:
        return _like(arg, arg.data.reshape(len(arg.data), -1)[:, 0])

    def create_select(self, condition: Any, left: Any, right: Any) -> Any:
        missing = max(left.data.ndim, right.data.ndim) - condition.data.ndim  # a scalar condition
        chosen = condition.data.reshape(condition.data.shape + (1,) * missing)
        return _like(left, np.where(chosen, left.data, right.data), right)

    def create_join(self, left: Any, right: Any) -> Any:
        return _like(left, np.stack(np.broadcast_arrays(left.data, right.data), axis=-1), right)

    def create_cat(self, left: Any, right: Any) -> Any:
        pair = _same_programs(left.data, right.data)
        return _like(left, np.concatenate(pair, axis=1), right)

    def create_gather(self, source: Any, indices: Any, axis: int) -> Any:
        pair = _same_programs(source.data, indices.data)
        return _like(source, np.take_along_axis(*pair, axis=axis + 1))


def _like(arg: Any, data: Array, other: Any = None) -> Any:
    """A handle of the same kind; a pointer still points into the argument of all its sources."""
    same = other is None or other.attr.get(ARGUMENT) == arg.attr.get(ARGUMENT)
    return TensorHandle(data, arg.dtype.scalar, arg.attr if same else {})


def _same_programs(left: Array, right: Array) -> tuple[Array, Array]:
    """Two blocks of different shape, repeated to the same number of programs."""
    count = max(len(left), len(right))
    return (
        np.broadcast_to(left, (count, *left.shape[1:])),
        np.broadcast_to(right, (count, *right.shape[1:])),
    )


def _refuse(name: str) -> Any:
    def operation(*_: Any, **__: Any) -> Any:
        raise NotCovered(name.removeprefix("create_"))

    return operation


# Run one program after the other: their order is part of the result (atomics, prints), or the
# operation makes addresses or shapes from a scalar that differs from program to program.
for _name in (
    "create_atomic_cas",
    "create_print",
    "create_histogram",
    "create_make_block_ptr",
    "create_make_tensor_descriptor",
    "create_descriptor_load",
    "create_descriptor_store",
    "create_descriptor_gather",
    "create_descriptor_scatter",
):
    setattr(BatchedBuilder, _name, _refuse(_name))
