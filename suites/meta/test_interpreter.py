"""The repaired interpreter rounds as hardware does: against torch, bit for bit, on the CPU."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from parity.interpreter import fma, prepare, repair
from parity.triton_versions import adapt

TIER = prepare()

import triton  # noqa: E402  the tier is chosen before triton is imported
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.skipif(
    TIER == "gpu", reason="NOT_RUN: triton compiles for the GPU here, the interpreter is not used"
)
LANES = 1024


@triton.jit
def binary_kernel(X, Y, OUT, OP: tl.constexpr, N: tl.constexpr):
    lane = tl.arange(0, N)
    x = tl.load(X + lane)
    y = tl.load(Y + lane)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    else:
        z = -x
    tl.store(OUT + lane, z)


@triton.jit
def cast_kernel(X, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.load(X + lane).to(OUT.dtype.element_ty))


@triton.jit
def towards_zero_kernel(X, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.load(X + lane).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def fma_kernel(X, Y, Z, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.fma(tl.load(X + lane), tl.load(Y + lane), tl.load(Z + lane)))


@triton.jit
def eighth_kernel(X, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.load(X + lane).to(tl.float8e4b15).to(tl.float32))


@triton.jit
def constant_kernel(X, OUT, factor, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.load(X + lane) * 1.1 + tl.full((N,), 0.3, tl.bfloat16) * factor)


@triton.jit
def sum_kernel(X, OUT, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(X + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if AXIS is None:
        tl.store(OUT, tl.sum(x))
    elif AXIS == 0:
        tl.store(OUT + tl.arange(0, N), tl.sum(x, axis=0))
    else:
        tl.store(OUT + tl.arange(0, M), tl.sum(x, axis=1))


@triton.jit
def atomic_kernel(X, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.atomic_add(OUT + lane % 2, tl.load(X + lane), mask=lane > 0)


@triton.jit
def maximum_kernel(X, Y, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.maximum(tl.load(X + lane), tl.load(Y + lane)))


def every_bfloat16() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def ties(dtype: torch.dtype) -> torch.Tensor:
    """Every value of `dtype`, the midpoints between neighbours and their fp32 neighbours: [n]."""
    integer = torch.int8 if dtype.itemsize == 1 else torch.int16
    bits = torch.arange(-(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1))
    values = bits.to(integer).view(dtype).double()
    values = values[values.isfinite()].unique()
    middle = (values[1:] + values[:-1]) / 2
    fine = torch.cat([values, middle]).float()
    return torch.cat([torch.nextafter(fine, fine - 1), fine, torch.nextafter(fine, fine + 1)])


def special() -> torch.Tensor:
    tiny = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 2.0**-134, 3 * 2.0**-134, 2.0**-25, 2.0**-17]
    large = [448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0, 61441.0, 65504.0, 65520.0, 3.3961e38]
    rest = [float("nan"), float("inf"), -float("inf")]
    return torch.tensor(tiny + large + [-x for x in large] + rest)


def padded(x: torch.Tensor) -> torch.Tensor:
    """x with zeros appended up to whole launches: [k, LANES]."""
    return torch.cat([x, x.new_zeros(-len(x) % LANES)]).view(-1, LANES)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, except that any NaN equals any NaN: its payload is not hardware's on any CPU."""
    nan = expected.float().isnan()
    assert torch.equal(actual.float().isnan(), nan)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[actual.itemsize]
    differ = (actual.view(integer) != expected.view(integer)) & ~nan
    assert not differ.any(), f"{int(differ.sum())} lanes differ, first at {differ.nonzero()[0]}"


def triton_version() -> tuple[int, ...]:
    return tuple(int(part) for part in triton.__version__.split(".")[:2])


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rows = padded(x)
    out = torch.empty(rows.shape, dtype=dtype)
    for row, target in zip(rows, out, strict=True):
        cast_kernel[(1,)](row, target, N=LANES)
    return out.view(-1)[: len(x)]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "neg"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_binary_operations_round_like_torch(op: str, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    x, y = every_bfloat16()[torch.randperm(2**16)].to(dtype).view(2, -1)[:, : 4 * LANES]
    x, y = x.contiguous(), y.contiguous()
    # Since Triton 3.8 `-x` is a negation; before, it was a subtraction from zero.
    negated = -x if triton_version() >= (3, 8) else 0 - x
    expected = {"add": x + y, "sub": x - y, "mul": x * y, "neg": negated}[op]
    out = torch.empty_like(x)
    for part in range(4):
        lanes = slice(part * LANES, (part + 1) * LANES)
        binary_kernel[(1,)](x[lanes], y[lanes], out[lanes], OP=op, N=LANES)
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_from_fp32_round_to_nearest_even(dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    every = ties(dtype)
    x = torch.cat([every[torch.randperm(len(every))[: 8 * LANES]], special()])
    assert_same_bits(cast(x, dtype), x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_casts_to_fp8_round_to_nearest_even_and_saturate(
    dtype: torch.dtype, source: torch.dtype
) -> None:
    x = torch.cat([ties(dtype), special()]).to(source)
    limit = torch.finfo(dtype).max
    assert_same_bits(cast(x, dtype), x.float().clamp(-limit, limit).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_casts_upwards_are_exact(dtype: torch.dtype, target: torch.dtype) -> None:
    bits = torch.arange(0, 256).to(torch.uint8)
    x = bits.view(dtype) if dtype.itemsize == 1 else every_bfloat16()[:: 2**6]
    if dtype == torch.bfloat16 and target == torch.float16:
        x = x[x.float().abs() < 2.0**15]
    assert_same_bits(cast(x, target), x.to(target))


def test_fp64_and_integers_reach_bf16_with_one_rounding() -> None:
    just_above_a_tie = 1 + 2.0**-8 + 2.0**-40  # through fp32 this is a tie and rounds down
    double = torch.tensor([just_above_a_tie, -just_above_a_tie, 1.5], dtype=torch.float64)
    expected = torch.tensor([1 + 2.0**-7, -1 - 2.0**-7, 1.5], dtype=torch.bfloat16)
    assert_same_bits(cast(double, torch.bfloat16), expected)
    integer = torch.tensor([2**30 + 2**22 + 1, 3], dtype=torch.int32)
    expected = torch.tensor([2.0**30 + 2.0**23, 3], dtype=torch.bfloat16)
    assert_same_bits(cast(integer, torch.bfloat16), expected)


def test_constants_and_float_arguments_are_rounded_where_hardware_rounds_them() -> None:
    x = every_bfloat16()[15000 : 15000 + LANES].contiguous()
    out = torch.empty_like(x)
    constant_kernel[(1,)](x, out, 0.7, N=LANES)
    bf16 = torch.bfloat16
    # The compiled kernel (read from its TTIR): literals take the tensor's dtype, a float argument
    # is an fp32 scalar and lifts the product and the sum to fp32.
    addend = torch.tensor(0.3, dtype=bf16).float() * torch.tensor(0.7)
    expected = (x * torch.tensor(1.1, dtype=bf16)).float() + addend
    assert_same_bits(out, expected.to(bf16))


def fold(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis by folding halves, each addition rounded in x's dtype."""
    while x.shape[-1] > 1:
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x[..., 0]


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sum_accumulates_in_its_own_dtype(axis: int | None, dtype: torch.dtype) -> None:
    """Compiled for sm_90, `tl.sum` of bf16 is a chain of `add.bf16`."""
    torch.manual_seed(9)
    x = torch.randn(8, 64).to(dtype)
    expected = fold({None: x.view(1, -1), 0: x.t(), 1: x}[axis])
    out = torch.empty_like(expected)
    sum_kernel[(1,)](x, out, AXIS=axis, M=8, N=64)
    assert_same_bits(out, expected)


def test_atomic_add_of_bf16_adds_lane_by_lane_and_honours_the_mask() -> None:
    torch.manual_seed(10)
    x = torch.randn(16).to(torch.bfloat16)
    out = torch.ones(2, dtype=torch.bfloat16)
    expected = out.clone()
    for lane in range(1, 16):
        expected[lane % 2] += x[lane]
    atomic_kernel[(1,)](x, out, N=16)
    assert_same_bits(out, expected)


def test_maximum_returns_the_operand_that_is_a_number() -> None:
    x = torch.tensor([float("nan"), 1.0, float("nan"), -1.0])
    y = torch.tensor([2.0, float("nan"), float("nan"), -2.0])
    out = torch.empty_like(x)
    maximum_kernel[(1,)](x, y, out, N=4)
    assert_same_bits(out, torch.tensor([2.0, 1.0, float("nan"), -1.0]))


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(11)
    x, y = rng.standard_normal((2, 2000)).astype(np.float32)
    z = (-(x * y) * (1 + rng.integers(-2, 3, 2000) * 2.0**-23)).astype(np.float32)
    actual = fma(x, y, z)
    operands = (map(Fraction, array.tolist()) for array in (x, y, z))
    exact = [a * b + c for a, b, c in zip(*operands, strict=True)]
    for value, truth in zip(actual, exact, strict=True):
        below, above = np.nextafter(value, np.float32([-np.inf, np.inf]))
        error = abs(Fraction(float(value)) - truth)
        assert error <= min(abs(Fraction(float(n)) - truth) for n in (below, above))
    assert (actual != x * y + z).any()


def test_a_kernel_rounds_its_fma_once() -> None:
    """(1 + e)(1 - e) - 1 is -e^2, of which two roundings leave nothing."""
    e = 2.0**-13
    x, y, z = (torch.full((4,), value) for value in (1 + e, 1 - e, -1.0))
    out = torch.empty_like(x)
    fma_kernel[(1,)](x, y, z, out, N=4)
    assert_same_bits(out, torch.full((4,), -(e**2)))
    assert ((x * y + z) == 0).all()


def test_a_cast_that_asks_for_it_rounds_towards_zero() -> None:
    """For bfloat16 that is cutting off the lower half of the bits."""
    halves = torch.randint(-(2**31), 2**31, (LANES,), dtype=torch.int64).to(torch.int32)
    x = halves.view(torch.float32).nan_to_num(nan=1 / 3)
    out = torch.empty(LANES, dtype=torch.bfloat16)
    towards_zero_kernel[(1,)](x, out, N=LANES)
    assert_same_bits(out, (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16))


def test_a_float8_that_no_gpu_here_has_is_refused() -> None:
    x = torch.ones(4)
    with pytest.raises(Exception, match="Expected a float8 type of sm_90, but got fp8e4b15"):
        eighth_kernel[(1,)](x, torch.empty_like(x), N=4)


STOCK = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(X, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    x = tl.load(X + lane)
    tl.store(OUT + lane, (x * x).to(OUT.dtype.element_ty))
x = torch.tensor([1.0, 1.5, 3.0, -2.0], dtype=torch.bfloat16)
out = torch.zeros(4, dtype=torch.bfloat16)
kernel[(1,)](x, out, N=4)
print(torch.equal(out, (x * x).to(torch.bfloat16)))
"""
REPAIR = "from parity.interpreter import prepare; prepare()\n"


@pytest.mark.parametrize(("first", "right"), [("", "False"), (REPAIR, "True")])
def test_the_stock_interpreter_gets_bf16_wrong(tmp_path, first: str, right: str) -> None:
    """The planted fault: without the repair the same kernel is wrong, so these tests can fail."""
    script = tmp_path / "kernel.py"
    script.write_text(first + STOCK)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == right


def test_prepare_refuses_a_triton_that_was_imported_for_a_gpu(tmp_path) -> None:
    script = "import triton.language\nfrom parity.interpreter import prepare\nprepare()"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert "Expected TRITON_INTERPRET=1 before the first import of triton" in ran.stderr


@pytest.mark.parametrize("version", ["3.4.1", "3.10.0", "4.0.0"])
def test_a_version_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(RuntimeError, match=rf"Expected triton 3\.5 to 3\.9 .* got {version}"):
        adapt(importlib.import_module("triton.runtime.interpreter"))


def test_native_calls_of_3_9_get_no_type_that_they_do_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """bf16 goes as the integers that hold its bits, fp32 as it is; the calls are the real ones."""
    native = importlib.import_module("triton.runtime.interpreter")._interpreter
    given = []

    class Strict:
        def load(self, addresses, mask, other, dtype):  # type: ignore[no-untyped-def]
            given.append(dtype)
            return native.load(addresses, mask, other, dtype)

        def store(self, addresses, values, mask):  # type: ignore[no-untyped-def]
            given.append(values.dtype)
            native.store(addresses, values, mask)

        untouched = "untouched"

    interpreter = SimpleNamespace(_interpreter=Strict())
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    adapt(interpreter)  # type: ignore[arg-type]
    calls = interpreter._interpreter
    assert calls.untouched == "untouched"
    mask = np.array([True, True, False])
    for dtype, plain in ((np.dtype(ml_dtypes.bfloat16), np.uint16), (np.dtype("f4"), np.float32)):
        memory = np.array([1.5, -2.0, 7.0], dtype)
        places = memory.ctypes.data + np.arange(3, dtype=np.uint64) * dtype.itemsize
        loaded = calls.load(places, mask, np.full(3, 9.0), dtype)
        assert loaded.dtype == dtype
        assert loaded.astype(float).tolist() == [1.5, -2.0, 9.0]
        calls.store(places, np.full(3, 3.0).astype(dtype), mask)
        assert memory.astype(float).tolist() == [3.0, 3.0, 7.0]
        assert given[-2:] == [np.dtype(plain)] * 2


def test_a_triton_without_the_hooks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = importlib.import_module("triton.runtime.interpreter")
    monkeypatch.setattr(interpreter, "_repaired_by_parity", False)
    monkeypatch.delattr(interpreter.InterpreterBuilder, "create_fma")
    with pytest.raises(RuntimeError, match="Triton interpreter with InterpreterBuilder hooks"):
        repair()
