"""Contraction: which product is fused, by the rule of rounding once, and by what LLVM does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType

import pytest
import torch

from parity.interpreter import prepare
from suites.meta.kernel_file import imported

TIER = prepare()
if TIER == "interpreter":
    from parity.codegen.asking import COMPILER, described
    from parity.cpu_tier.contraction import contracted, possible, unexplained

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def turn_kernel(A, B, C, D, OUT, N: tl.constexpr, MINUS: tl.constexpr):
    lane = tl.arange(0, N)
    a, b = tl.load(A + lane), tl.load(B + lane)
    c, d = tl.load(C + lane), tl.load(D + lane)
    tl.store(OUT + lane, a * b - c * d if MINUS else a * b + c * d)


@triton.jit
def scale_kernel(A, B, C, OUT, N: tl.constexpr, LAST: tl.constexpr):
    lane = tl.arange(0, N)
    a, b, c = tl.load(A + lane), tl.load(B + lane), tl.load(C + lane)
    product = (a * b).reshape(1, N).reshape(N) if LAST else a * b
    tl.store(OUT + lane, c - product if LAST else product - c)
"""
N = 256


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    if TIER == "gpu":
        pytest.skip("NOT_RUN: triton compiles for the GPU here, the interpreter is not used")
    with imported(tmp_path_factory.mktemp("kernels") / "turned.py", KERNEL) as module:
        yield module


def operands(dtype: torch.dtype, count: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(N).to(dtype) for _ in range(count)]


def once(*terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A sum in float64 rounded once; exact enough for products of bf16 and fp16."""
    return sum(term.double() for term in terms).to(dtype)  # type: ignore[union-attr]


@pytest.mark.parametrize("minus", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_either_product_is_left_unrounded(
    kernels: ModuleType, dtype: torch.dtype, minus: bool
) -> None:
    a, b, c, d = operands(dtype)
    sign = -1 if minus else 1

    def run() -> torch.Tensor:
        out = torch.empty(N, dtype=dtype)
        kernels.turn_kernel[(1,)](a, b, c, d, out, N, minus)
        return out

    plain, left, right = possible(run)
    assert torch.equal(plain, a * b + sign * (c * d))
    assert torch.equal(left, once(a.double() * b.double(), sign * (c * d), dtype=dtype))
    assert torch.equal(right, once(a * b, sign * c.double() * d.double(), dtype=dtype))
    assert not torch.equal(left, right)
    assert torch.equal(run(), plain)  # outside of the context nothing is fused


def test_what_none_of_the_three_gives_is_unexplained(kernels: ModuleType) -> None:
    a, b, c, d = operands(torch.bfloat16)

    def run() -> torch.Tensor:
        out = torch.empty(N, dtype=torch.bfloat16)
        kernels.turn_kernel[(1,)](a, b, c, d, out, N, False)
        return out

    results = possible(run)
    mixed = torch.where(torch.arange(N) % 2 == 0, results[1], results[2])
    assert not unexplained(mixed, results).any()
    mixed[7] += 1.0
    assert unexplained(mixed, results).nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("last", [False, True])
def test_one_product_is_fused_on_any_side_and_not_through_a_reshape(
    kernels: ModuleType, last: bool
) -> None:
    a, b, c = operands(torch.bfloat16, 3)
    out = torch.empty(N, dtype=torch.bfloat16)
    with contracted("right"):
        kernels.scale_kernel[(1,)](a, b, c, out, N, last)
    fused = once(a.double() * b.double(), -c, dtype=torch.bfloat16)
    assert torch.equal(out, c - a * b if last else fused)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("minus", [False, True])
def test_llvm_fuses_the_left_product(kernels: ModuleType, dtype: torch.dtype, minus: bool) -> None:
    """The factors of the multiply-add in PTX are what the first two loads gave."""
    if dtype == torch.float32 and version("triton").startswith("3.5"):
        pytest.skip("NOT_RUN: Triton 3.5 packs fp32 registers, which _spread does not follow")
    a, b, c, d = operands(dtype)
    given = dict(zip("ABCD", (a, b, c, d), strict=True)) | {"OUT": a, "N": N, "MINUS": minus}
    function = kernels.turn_kernel.fn
    question = described(function, given, {"num_warps": 1}, "sm_90")
    assert question is not None
    ptx = COMPILER.ask(question)["ptx"]
    fused = re.findall(r"fma\.rn\.\S+\s+\S+ (\S+), (\S+), \S+;", ptx)
    multiplied = re.findall(r"mul\.\S+\s+\S+ (\S+), (\S+);", ptx)
    assert fused
    first_loaded, last_loaded = _loaded(ptx)
    assert {name for pair in fused for name in pair} <= first_loaded
    assert {name for pair in multiplied for name in pair if name in first_loaded} == set()
    assert any(name in last_loaded for pair in multiplied for name in pair)


def _loaded(ptx: str) -> tuple[set[str], set[str]]:
    """Registers that hold values of the first and of the last two pointers."""
    order: list[str] = []
    for names in re.findall(r"ld\.global\S*\s+\{([^}]*)\}", ptx):
        order += [name.strip() for name in names.split(",")]
    half = len(order) // 2
    return _spread(ptx, set(order[:half])), _spread(ptx, set(order[half:]))


def _spread(ptx: str, names: set[str]) -> set[str]:
    """Registers that only take apart or pass on what these hold."""
    moves = re.findall(r"mov\.b\d+\s+(\{[^}]*\}|%\w+), (%\w+);", ptx)
    for target, source in moves:
        if source in names:
            names |= {name.strip() for name in target.strip("{}").split(",")}
    return names
