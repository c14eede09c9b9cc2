"""Which warp holds which lane, and whether a hazard between lanes is one between warps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from parity.codegen.layouts import accesses, holders, waits
from parity.interpreter import prepare
from suites.meta.kernel_file import imported

TIER = prepare()
if TIER == "interpreter":
    from parity.cpu_tier import trace

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def mirror_kernel(X, N: tl.constexpr, BARRIER: tl.constexpr):
    """Every lane stores what the lane at the other end loads."""
    lane = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + lane)
    if BARRIER:
        tl.debug_barrier()
    tl.store(X + tl.program_id(0) * N + N - 1 - tl.arange(0, N), x)
'''


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    if TIER == "gpu":
        pytest.skip("NOT_RUN: triton compiles for the GPU here, the interpreter is not used")
    with imported(tmp_path_factory.mktemp("kernels") / "mirrored.py", KERNEL) as module:
        yield module


def kinds(kernels: ModuleType, lanes: int, warps: int, barrier: bool) -> set[str]:
    with trace() as traced:
        kernels.mirror_kernel[(2,)](torch.randn(2 * lanes), lanes, barrier, num_warps=warps)
    return {finding.kind for finding in traced.findings}


def test_a_hazard_between_lanes_is_one_between_warps_where_several_hold_the_tile(
    kernels: ModuleType,
) -> None:
    position = {"write_after_read"}
    assert kinds(kernels, 128, 4, False) == position | {"write_after_read_across_warps"}
    assert kinds(kernels, 128, 1, False) == position
    assert kinds(kernels, 32, 1, False) == position
    assert kinds(kernels, 128, 4, True) == set()


def test_a_module_that_asks_for_the_interpreter_is_compiled_where_it_can_be(
    tmp_path: Path, kernels: ModuleType
) -> None:
    position = {"write_after_read"}
    interpreted = 'import os\nos.environ["TRITON_INTERPRET"] = "1"\n'
    asking = "from parity.interpreter import prepare\nprepare()\n"
    with imported(tmp_path / "forced.py", interpreted + KERNEL) as forced:
        assert kinds(forced, 128, 4, False) == position  # not compiled, and nothing else is lost
    with imported(tmp_path / "asked.py", asking + KERNEL) as asked:
        assert kinds(asked, 128, 4, False) == position | {"write_after_read_across_warps"}
    assert kinds(kernels, 64, 2, False) == position | {"write_after_read_across_warps"}


def test_the_sentence_names_line_lanes_and_compiler(kernels: ModuleType) -> None:
    with trace() as traced:
        kernels.mirror_kernel[(2,)](torch.randn(256), 128, False)
    (found,) = (one for one in traced.findings if one.kind.endswith("warps"))
    first = kernels.mirror_kernel.fn.__code__.co_firstlineno
    assert found.line == f"mirrored.py:{first + 7}"
    assert f"compiled for sm_90 by triton {__import__('triton').__version__}" in found.sentence
    assert f"128 lanes of the tile are read by another warp at mirrored.py:{first + 4}" in (
        found.sentence
    )


def warps(layout: str, shape: tuple[int, ...]) -> list[list[int]]:
    """For each element the warps that hold it."""
    masks = holders(layout, shape)
    assert masks is not None
    return [[bit for bit in range(32) if mask >> bit & 1] for mask in masks.reshape(-1).tolist()]


def blocked(size: str, threads: str, warps: str, order: str) -> str:
    return (
        f"#ttg.blocked<{{sizePerThread = [{size}], threadsPerWarp = [{threads}], "
        f"warpsPerCTA = [{warps}], order = [{order}]}}>"
    )


def test_a_blocked_layout_deals_blocks_to_warps_and_begins_again() -> None:
    rows = warps(blocked("1", "32", "2", "0"), (128,))
    assert rows == [[0]] * 32 + [[1]] * 32 + [[0]] * 32 + [[1]] * 32
    assert warps(blocked("4", "32", "2", "0"), (128,)) == [[0, 1]] * 128


def test_a_small_tile_is_held_by_several_warps() -> None:
    by_row = warps(blocked("1, 1", "1, 32", "4, 1", "1, 0"), (2, 32))
    assert by_row == [[0, 2]] * 32 + [[1, 3]] * 32
    # triton 3.6 gives this to the backward of an in-place kernel: half a row to each of two warps
    by_half = warps(blocked("1, 1", "2, 16", "1, 4", "0, 1"), (2, 32))
    assert by_half == ([[0, 2]] * 16 + [[1, 3]] * 16) * 2


def test_a_slice_is_held_by_all_warps_along_its_axis() -> None:
    parent = blocked("1, 1", "1, 32", "2, 2", "1, 0")
    assert warps(f"#ttg.slice<{{dim = 0, parent = {parent}}}>", (64,)) == (
        [[0, 2]] * 32 + [[1, 3]] * 32
    )


def test_a_linear_layout_is_a_sum_of_bases() -> None:
    layout = (
        "#ttg.linear<{register = [[0, 1]], lane = [[0, 2], [0, 4], [0, 8], [0, 16], [0, 32]], "
        "warp = [[1, 0], [0, 0]], block = []}>"
    )
    assert warps(layout, (2, 64)) == [[0, 2]] * 64 + [[1, 3]] * 64


def test_an_unknown_layout_gives_no_verdict() -> None:
    assert holders("#ttg.nvidia_mma<{versionMajor = 3}>", (16, 16)) is None


TTGIR = """
#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], ORDER}>
#loc = loc("/a/k.py":3:0)
  %x = tt.load %p, %m : tensor<128x!tt.ptr<bf16>, #blocked> loc(#loc9)
  tt.store %q, %x : tensor<1x128x!tt.ptr<bf16>, #ttg.slice<{dim = 2, parent = #blocked}>> loc(#loc7)
#loc3 = loc("/a/k.py":12:8)
#loc4 = loc("/a/k.py":40:4)
#loc7 = loc(callsite(#loc4 at #loc3))
#loc9 = loc("x"(#loc3))
"""


def test_loads_and_stores_with_their_innermost_line() -> None:
    load, store = accesses(TTGIR.replace("ORDER", "order = [0]"))
    assert (load.kind, load.line, load.shape) == ("load", "k.py:12", (128,))
    assert np.array_equal(holders(load.layout, (128,)), 1 << np.arange(128) // 32)
    assert (store.kind, store.line, store.shape) == ("store", "k.py:40", (1, 128))
    assert "parent = #ttg.blocked<" in store.layout


PTX = """
	.loc	1 12 20
	ld.global.b16 { %rs1 }, [ %rd1 + 0 ];
	BARRIER;
	.loc	1 40 4
	@%p2 st.global.b16 [ %rd7 + 0 ], { %rs3 };
	bar.sync 	0;
	.file	1 "/a/k.py"
"""


@pytest.mark.parametrize(
    ("instruction", "expected"), [("bar.sync 	0", True), ("bar.warp.sync 	-1", False)]
)
def test_a_barrier_counts_between_the_load_and_the_store(instruction: str, expected: bool) -> None:
    assert waits(PTX.replace("BARRIER", instruction), "k.py:12", "k.py:40") is expected
