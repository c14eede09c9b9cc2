"""The batched engine gives the bits of the sequential one, whatever programs do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.interpreter import prepare

TIER = prepare()

import triton  # noqa: E402  the tier is chosen before triton is imported
import triton.language as tl  # noqa: E402

from parity.kernels.inplace import fused_mla_rope_inplace  # noqa: E402

pytestmark = pytest.mark.skipif(
    TIER == "gpu", reason="NOT_RUN: triton compiles for the GPU here, the interpreter is not used"
)
if TIER == "interpreter":
    from parity.cpu_tier.engine import ENGINE, sequential
    from parity.cpu_tier.language import overflow_checked

FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@triton.jit
def shapes_kernel(X, OUT, M: tl.constexpr, N: tl.constexpr):
    """Every operation that names an axis or a shape, one row of results each."""
    pid = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    row, column = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    x = tl.load(X + pid * M * N + row * N + column)
    scale = tl.load(X + pid)
    out = OUT + pid * 8 * M * N + tl.arange(0, M * N)
    y = tl.trans(x * scale).reshape(M * N)
    left, right = tl.split(x.reshape(M, N // 2, 2))
    tl.store(out, y)
    tl.store(out + M * N, tl.join(right, left).reshape(M * N))
    tl.store(out + 2 * M * N, tl.cat(left.reshape(M * N // 2), right.reshape(M * N // 2), True))
    tl.store(out + 3 * M * N, tl.where(scale > 0, x, -x).reshape(M * N))
    tl.store(out + 4 * M * N, tl.where(x > scale, x.T.T, pid).reshape(M * N))
    tl.store(out + 5 * M * N, tl.full((M * N,), 0.5, tl.float32) + pid)
    same = tl.broadcast_to(row * 0 + pid % N, (M, N))
    tl.store(out + 6 * M * N, tl.gather(x, same, 1).reshape(M * N))
    tl.store(out + 7 * M * N, tl.dot(x.to(tl.float32), tl.trans(x).to(tl.float32)).sum() + y)


@triton.jit
def reductions_kernel(X, OUT, M: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    x = tl.load(X + pid * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    out = OUT + pid * 16 * N
    lane = tl.arange(0, N)
    tl.store(out + lane, tl.sum(x, axis=0))
    tl.store(out + N + lane, tl.max(x, axis=-2))
    tl.store(out + 2 * N + lane, tl.min(x, axis=0))
    tl.store(out + 3 * N + lane, tl.argmax(x, axis=0))
    tl.store(out + 4 * N + lane, tl.argmin(x, axis=0))
    tl.store(out + 5 * N + tl.arange(0, M), tl.sum(x, axis=-1))
    tl.store(out + 6 * N + lane[None, :], tl.sum(x, axis=0, keep_dims=True))
    tl.store(out + 7 * N, tl.sum(x))
    tl.store(out + 8 * N + lane, tl.sum(tl.cumsum(x, axis=1), axis=0))
    tl.store(out + 9 * N + lane, tl.sum(tl.cumsum(x, axis=0, reverse=True), axis=0))
    tl.store(out + 10 * N + lane, tl.sum(tl.cumprod(x, axis=-1), axis=0))
    tl.store(out + 11 * N + lane, tl.xor_sum(x.to(tl.int32), axis=0))
    tl.store(out + 12 * N + tl.arange(0, M), tl.max(x, axis=1))


@triton.jit
def position(ends, row, count):
    """The sequence of a row by a linear scan that stops early: control flow on memory."""
    sequence = 0
    while tl.load(ends + sequence) <= row:
        sequence += 1
    return sequence


@triton.jit
def divergent_kernel(X, ENDS, OUT, count, N: tl.constexpr):
    """Stores before, inside and after branches that differ from program to program."""
    pid = tl.program_id(0)
    lane = tl.arange(0, N)
    x = tl.load(X + pid * N + lane)
    tl.store(X + pid * N + lane, x + 1)
    sequence = position(ENDS, pid, count)
    if sequence == 1 or (sequence > 2 and pid % 2 != 0):
        tl.store(OUT + pid * N + lane, x * 2)
        if pid % 3 == 0:
            return
        x = tl.load(X + pid * N + lane)
    for step in range(sequence):
        x = x + step
    tl.store(OUT + pid * N + lane, x, mask=lane < N - sequence)


@triton.jit
def atomic_kernel(X, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    x = tl.load(X + tl.program_id(0) * N + lane)
    tl.store(X + tl.program_id(0) * N + lane, x + 1)
    tl.atomic_add(OUT + lane % 2, x)
    tl.atomic_add(OUT + lane % 2, x * x)


@triton.jit
def last_wins_kernel(OUT, N: tl.constexpr):
    tl.store(OUT + tl.arange(0, N), tl.program_id(0))
    tl.store(OUT + N + tl.program_id(0) // 2, tl.program_id(0))


@triton.jit
def overflow_kernel(OUT, factor):
    tl.store(OUT + tl.program_id(0), tl.program_id(0) * factor)


def both(launch, *tensors: torch.Tensor) -> None:
    """Launch on two copies of the tensors, batched and program by program: the same bytes."""
    batched, alone = ([tensor.clone() for tensor in tensors] for _ in range(2))
    launch(*batched)
    with sequential():
        launch(*alone)
    for left, right in zip(batched, alone, strict=True):
        assert torch.equal(left.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOATS)
def test_operations_on_shapes(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(6, 4, 8).to(dtype)
    before = ENGINE.counts.sequential
    both(lambda x, out: shapes_kernel[(2, 3)](x, out, M=4, N=8), x, torch.zeros(6, 8, 32))
    assert ENGINE.counts.sequential - before == 6  # the sequential run alone: nothing fell back


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions_and_scans(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = (torch.randn(5, 4, 8) * 4).to(dtype)
    before = ENGINE.counts.sequential
    both(lambda x, out: reductions_kernel[(5,)](x, out, M=4, N=8), x, torch.zeros(5, 16, 8))
    assert ENGINE.counts.sequential - before == 5


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_programs_that_part_ways(lengths: list[int]) -> None:
    """Branches, early returns, loops of different length: stores of a failed try are undone."""
    ends = torch.tensor(lengths).cumsum(0)
    rows = int(ends[-1])
    x, out = torch.randn(rows, 8), torch.full((rows, 8), torch.nan)
    before = ENGINE.counts.sequential
    launch = lambda x, out: divergent_kernel[(rows,)](x, ends, out, len(lengths), N=8)  # noqa: E731
    both(launch, x, out)
    assert ENGINE.counts.sequential - before == rows


@pytest.mark.parametrize(("ends", "replays"), [([4], 0), ([2, 4], 3)])
def test_each_path_runs_once_more_than_it_parts(ends: list[int], replays: int) -> None:
    """Rows 0-1, then 2 and 3: sequence 1 parts from 0, and there program 3 returns early."""
    x, out = torch.randn(4, 8), torch.zeros(4, 8)
    before = ENGINE.counts.replays
    divergent_kernel[(4,)](x, torch.tensor(ends), out, len(ends), N=8)
    assert ENGINE.counts.replays - before == replays - (replays > 0)


@settings(deadline=None, max_examples=12)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    heads=st.integers(1, 5),
    rope=st.sampled_from([2, 6, 8]),
    nope=st.integers(0, 5),
    dtype=st.sampled_from(FLOATS),
    tile=st.sampled_from([1, 4, None]),
    packed=st.booleans(),
)
def test_our_kernels_need_no_fallback(
    lengths: list[int],
    heads: int,
    rope: int,
    nope: int,
    dtype: torch.dtype,
    tile: int | None,
    packed: bool,
) -> None:
    tokens, ends = sum(lengths), torch.tensor([0, *lengths]).cumsum(0).int()
    shape = (tokens, heads, nope + rope) if packed else (tokens, 1, heads, nope + rope)
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    cos, sin = torch.randn(2, max(tokens, 1), rope)

    def launch(x: torch.Tensor, grad: torch.Tensor) -> None:
        leaf = x.clone().requires_grad_()
        cu_seqlens = ends if packed else None
        result = fused_mla_rope_inplace(leaf * 1, cos, sin, nope, rope, cu_seqlens, tile=tile)
        result.backward(grad.clone())
        x.copy_(result.detach())
        grad.copy_(leaf.grad)

    before = ENGINE.counts.replays, sum(ENGINE.counts.reasons.values())
    both(launch, x, grad)
    assert (ENGINE.counts.replays, sum(ENGINE.counts.reasons.values())) == before


def test_what_is_not_covered_falls_back_and_says_so() -> None:
    torch.manual_seed(3)
    before = ENGINE.counts.reasons["atomic_rmw"]
    both(lambda x, out: atomic_kernel[(5,)](x, out, N=8), torch.randn(5, 8), torch.zeros(2))
    assert ENGINE.counts.reasons["atomic_rmw"] == before + 1


def test_of_two_programs_at_one_address_the_later_wins() -> None:
    both(lambda out: last_wins_kernel[(6,)](out, N=4), torch.zeros(16, dtype=torch.int32))


def test_a_grid_without_programs_runs_nothing() -> None:
    both(lambda out: last_wins_kernel[(0,)](out, N=4), torch.zeros(16, dtype=torch.int32))


def test_many_programs_run_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.cpu_tier.engine.BATCH", 4)
    before = ENGINE.counts.batches
    out = torch.zeros(10, dtype=torch.int32)
    overflow_kernel[(10,)](out, 3)
    assert ENGINE.counts.batches - before == 3
    assert out.tolist() == [3 * program for program in range(10)]


def test_lanes_outside_of_the_storage_do_not_happen_and_the_launch_says_so() -> None:
    """A store past the end would destroy the process, at once or much later."""
    around = torch.zeros(12, dtype=torch.int32)
    with pytest.raises(Exception, match=r"last_wins_kernel to stay inside .* store OUT outside"):
        last_wins_kernel[(2,)](torch.zeros(4, dtype=torch.int32), N=4)
    last_wins_kernel[(2,)](around[4:9], N=4)  # the storage has these elements
    assert around.tolist() == [0] * 4 + [1] * 5 + [0] * 3


def test_overflow_of_int32_is_reported_in_the_checking_mode_only() -> None:
    out = torch.zeros(3, dtype=torch.int32)
    overflow_kernel[(3,)](out, 2**30)
    assert out.tolist() == [0, 2**30, -(2**31)]
    with (
        overflow_checked(),
        pytest.raises(Exception, match="int32 overflow detected for operation mul"),
    ):
        overflow_kernel[(3,)](out, 2**30)


@pytest.mark.parametrize("warps", [0, 3, 6])
def test_a_number_of_warps_that_no_gpu_launches_is_refused(warps: int) -> None:
    out = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match="num_warps of overflow_kernel to be a power of two"):
        overflow_kernel[(3,)](out, 2, num_warps=warps)
    overflow_kernel[(3,)](out, 2, num_warps=8)
    assert out.tolist() == [0, 2, 4]


@pytest.mark.parametrize("engine", ["batched", "traced"])
def test_the_benchmark_runs_what_it_names(engine: str) -> None:
    from parity.bench.interpreters import measure

    before = ENGINE.counts.batches
    speed = measure(engine)
    assert speed.engine == engine
    assert min(speed.cases_per_second, speed.launch_seconds) > 0
    assert ENGINE.counts.batches > before
