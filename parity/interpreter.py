"""Triton on a CPU: choose the tier, and repair the arithmetic of Triton's interpreter.

The stock interpreter keeps bfloat16 and float8 as unsigned integers, so it adds and multiplies bit
patterns and truncates casts. Here they become the `ml_dtypes` numpy types, whose arithmetic rounds
each operation to nearest even as `add.bf16` and `mul.bf16` do. What the hardware does was read from
the PTX that Triton 3.7 generates for sm_90.

Not hardware's bits, by design: division and the transcendental functions are correctly rounded here
and approximate there (`div.full.f32`); fp32 `tl.dot` does not round its inputs to tf32; nothing is
contracted to fused multiply-adds (compile with `enable_fp_fusion=False` to compare bits).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .triton_versions import adapt

Array = npt.NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# name of the Triton type -> numpy type with the same bits; fp8e4b15 has none.
FLOAT8 = {
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
}
FLOAT8_MAX = dict(zip(FLOAT8.values(), (57344.0, 448.0, 57344.0, 240.0), strict=True))
NARROW = {"bf16": BFLOAT16, **FLOAT8}
HOOKS = {
    "": (
        "_get_np_dtype",
        "_implicit_cvt",
        "_interpreter",
        "_ir",
        "_patch_lang",
        "interpreter_builder",
        "TensorHandle",
    ),
    "InterpreterBuilder": (
        "cast_impl",
        "create_fp_to_fp",
        "create_fma",
        "create_dot",
        "create_atomic_rmw",
        "create_maxnumf",
        "create_minnumf",
    ),
    "ReduceOps": ("sum", "apply_impl"),
    "ScanOps": ("apply_impl",),
    "GridExecutor": ("__call__", "_init_args_hst", "_restore_args_dev"),
}


def prepare() -> str:
    """Choose the tier before any kernel is defined: `"gpu"` or `"interpreter"`.

    A GPU is used where there is one, unless the user set `TRITON_INTERPRET=1`. Otherwise
    `TRITON_INTERPRET=1` is set, which Triton reads where a kernel is decorated, the interpreter is
    repaired, and launches run through the engine of `parity.cpu_tier`.

    Raises:
        RuntimeError: Triton was imported for a GPU that is not there, or is of a version whose
            interpreter is not known.
    """
    import torch

    if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "gpu"
    os.environ["TRITON_INTERPRET"] = "1"
    repair()
    importlib.import_module("parity.cpu_tier.engine").install()
    return "interpreter"


def repair() -> None:
    """Make the interpreter's bf16, fp8, casts and reductions round as hardware does; idempotent.

    Raises:
        RuntimeError: Triton was imported without `TRITON_INTERPRET=1`, or is of a version whose
            interpreter is not known.
    """
    _refuse_compiled_library()
    interpreter = importlib.import_module("triton.runtime.interpreter")
    if getattr(interpreter, "_repaired_by_parity", False):
        return
    adapt(interpreter)
    _refuse_missing_hooks(interpreter)
    _repair_types(interpreter)
    _repair_constants(interpreter)
    _repair_builder(interpreter)
    _repair_atomics(interpreter)
    _repair_sum_and_warnings(interpreter)
    vars(interpreter)["_repaired_by_parity"] = True


def _refuse_compiled_library() -> None:
    library = sys.modules.get("triton.language.standard")
    if library is not None and type(library._sum_combine).__name__ != "InterpretedFunction":
        raise RuntimeError(
            "Expected TRITON_INTERPRET=1 before the first import of triton, but triton was "
            "imported without it: call parity.interpreter.prepare() first or set the variable."
        )


def _refuse_missing_hooks(interpreter: ModuleType) -> None:
    for owner, names in HOOKS.items():
        holder = getattr(interpreter, owner, None) if owner else interpreter
        missing = [name for name in names if not hasattr(holder, name)]
        if missing:
            import triton

            raise RuntimeError(
                f"Expected a Triton interpreter with {owner or 'module'} hooks {missing}, but "
                f"triton={triton.__version__} has none: install the one of constraints.txt."
            )


def _repair_types(interpreter: ModuleType) -> None:
    stock: Callable[[Any], np.dtype[Any]] = interpreter._get_np_dtype
    # Remembered by name: the stock function builds its table anew in every call.
    known: dict[str, np.dtype[Any]] = dict(NARROW)

    def numpy_type(triton_type: Any) -> np.dtype[Any]:
        name = triton_type.scalar.name
        if name not in known:
            known[name] = stock(triton_type)
        return known[name]

    vars(interpreter)["_get_np_dtype"] = numpy_type


def _repair_constants(interpreter: ModuleType) -> None:
    import triton.language as tl

    stock, handle = interpreter._implicit_cvt, interpreter.TensorHandle

    def get_bf16(self: Any, value: float) -> Any:
        return handle(np.array([value], dtype=BFLOAT16), tl.bfloat16)

    def convert_argument(value: Any) -> Any:
        # A compiled kernel takes a float argument as fp32; the stock one computes in double.
        if type(value) is float:
            return tl.tensor(handle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return stock(value)

    interpreter.InterpreterBuilder.get_bf16 = get_bf16
    vars(interpreter)["_implicit_cvt"] = convert_argument


def _repair_builder(interpreter: ModuleType) -> None:
    handle, builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        data = narrow(source.data, interpreter._get_np_dtype(target))
        return handle(data, target.scalar)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if "fp8e4b15" in (source.dtype.scalar.name, target.scalar.name):
            raise ValueError("Expected a float8 type of sm_90, but got fp8e4b15: use fp8e4nv.")
        data = narrow(source.data, interpreter._get_np_dtype(target))
        if rounding == toward_zero:
            data = _toward_zero(source.data, data)
        return handle(data, target.scalar)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        return handle(fma(x.data, y.data, z.data), z.dtype.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        wide = d.data.dtype
        return handle(np.matmul(a.data.astype(wide), b.data.astype(wide)) + d.data, d.dtype.scalar)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.create_fma = create_fma
    builder.create_dot = create_dot
    # `max.f32` and `min.f32` return the operand that is a number; np.maximum returns NaN.
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)


def _repair_atomics(interpreter: ModuleType) -> None:
    builder, memory = interpreter.InterpreterBuilder, interpreter._interpreter
    stock: Callable[..., Any] = builder.create_atomic_rmw
    add = interpreter._ir.ATOMIC_OP.FADD

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *order: Any) -> Any:
        if op != add or value.data.dtype != BFLOAT16:
            return stock(self, op, ptr, value, mask, *order)
        old = np.zeros(value.data.shape, BFLOAT16)
        # One lane after the other: two lanes may add to one address. Each addition rounds.
        for lane in np.ndindex(value.data.shape):
            here, on = np.atleast_1d(ptr.data[lane]), np.atleast_1d(mask.data[lane])
            was = memory.load(here, on, np.zeros(1, BFLOAT16), BFLOAT16)
            memory.store(here, was + value.data[lane], on)
            old[lane] = was[0]
        return interpreter.TensorHandle(old, value.dtype.scalar)

    builder.create_atomic_rmw = create_atomic_rmw


def _repair_sum_and_warnings(interpreter: ModuleType) -> None:
    launch = interpreter.GridExecutor.__call__

    def quiet_launch(self: Any, *args: Any, **kwargs: Any) -> None:
        # Overflow and NaN are ordinary results on hardware, not events that numpy should print.
        with np.errstate(all="ignore"):
            launch(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = quiet_launch
    interpreter.ReduceOps.sum = _sum


def _sum(self: Any, tensor: Any) -> Any:
    """Sum in the tensor's own dtype, folding halves, each addition rounded.

    Compiled `tl.sum` adds bf16 and fp16 in bf16 and fp16 (`add.bf16`), across lanes as a butterfly
    of halves. numpy's order depends on strides and its fp16 sum accumulates in fp32.
    """
    data, axis = tensor.handle.data, self.axis
    total = fold(data.reshape(-1) if axis is None else np.moveaxis(data, axis, -1))
    if self.keep_dims:
        total = total.reshape(1) if axis is None else np.expand_dims(total, axis)
        total = total.reshape((1,) * data.ndim) if axis is None else total
    return self.to_tensor(total, tensor.dtype)


def fold(data: Array) -> Array:
    """Sum over the last axis, whose length is a power of two: `[..., n] -> [...]`."""
    while data.shape[-1] > 1:
        half = data.shape[-1] // 2
        data = data[..., :half] + data[..., half:]
    return np.asarray(data[..., 0])


def narrow(source: Array, target: np.dtype[Any]) -> Array:
    """Cast once, to nearest even; float8 saturates (`cvt.rn.satfinite`), NaN stays NaN."""
    with np.errstate(all="ignore"):
        if target in NARROW.values() and (source.dtype.kind in "iu" or source.dtype == np.float64):
            # ml_dtypes goes through fp32 and would round twice; `cvt.rn.bf16.f64` rounds once.
            source = _odd_float32(source.astype(np.float64))
        if target in FLOAT8.values():
            limit = source.dtype.type(FLOAT8_MAX[target])
            source = np.minimum(np.maximum(source, -limit), limit)
        return source.astype(target)


def fma(x: Array, y: Array, z: Array) -> Array:
    """`x * y + z` rounded once, for types up to fp32; fp64 rounds the product too."""
    if z.dtype == np.float64:
        return np.asarray(x * y + z)
    with np.errstate(all="ignore"):
        product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
        total = product + addend
        # Knuth's two-sum: the exact remainder of the addition; the product is exact in fp64.
        shadow = total - product
        rest = (product - (total - shadow)) + (addend - shadow)
    return narrow(_sticky(total, rest), z.dtype)


def _odd_float32(source: Array) -> Array:
    rounded = source.astype(np.float32)
    return _sticky(rounded, source - rounded)


def _sticky(rounded: Array, rest: Array) -> Array:
    """The odd neighbour wherever `rest` was lost, so that rounding again cannot go astray.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008): round to odd with at
    least two more bits, then to nearest, equals rounding once to nearest.
    """
    word = np.dtype(f"u{rounded.dtype.itemsize}")
    bits = rounded.view(word)
    larger = np.signbit(rounded) == (rest < 0)  # the exact value lies further from zero
    even = (rest != 0) & ~np.isnan(rest) & np.isfinite(rounded) & (bits % 2 == 0)
    step = np.where(larger, 1, -1).astype(word)
    return np.asarray(np.where(even, bits + step, bits)).view(rounded.dtype)


def _toward_zero(source: Array, nearest: Array) -> Array:
    bits = nearest.view(f"u{nearest.dtype.itemsize}")
    over = np.abs(nearest.astype(np.float64)) > np.abs(source.astype(np.float64))
    return np.asarray(bits - over.astype(bits.dtype)).view(nearest.dtype)
