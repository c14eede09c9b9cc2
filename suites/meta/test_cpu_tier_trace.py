"""A traced launch says what it did wrong: each fault is planted, and its honest twin is clean."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

from parity.interpreter import prepare

TIER = prepare()

import triton  # noqa: E402  the tier is chosen before triton is imported
import triton.language as tl  # noqa: E402

from parity.kernels import concat, inplace, kv_split, out_of_place, tiles  # noqa: E402

pytestmark = pytest.mark.skipif(
    TIER == "gpu", reason="NOT_RUN: triton compiles for the GPU here, the interpreter is not used"
)
if TIER == "interpreter":
    from parity.cpu_tier import ENGINE, sequential, trace

Kinds = set[str]


@triton.jit
def copy_kernel(X, OUT, count, N: tl.constexpr, SHIFT: tl.constexpr):
    lane = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + lane, mask=lane < count)
    tl.store(OUT + lane + SHIFT, x, mask=lane < count)


@triton.jit
def padded_row_kernel(TABLE, OUT, width, N: tl.constexpr):
    lane = tl.arange(0, N)
    row = tl.load(TABLE + tl.program_id(0) * width + lane)
    tl.store(OUT + tl.program_id(0) * width + lane, row, mask=lane < width)


@triton.jit
def neighbour_kernel(X, OUT, N: tl.constexpr):
    program = tl.program_id(0)
    lane = tl.arange(0, N)
    tl.store(OUT + program * N + lane, 1.0)
    tl.store(X + lane, tl.load(OUT + (program + 1) % tl.num_programs(0) * N + lane) + program)


@triton.jit
def swap_kernel(X, BARRIER: tl.constexpr, SAME: tl.constexpr, N: tl.constexpr):
    lane = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(X + lane)
    if BARRIER:
        tl.debug_barrier()
    if SAME:
        tl.store(X + lane, -x)
    else:
        tl.store(X + tl.program_id(0) * N + N - 1 - tl.arange(0, N), x)


@triton.jit
def count_kernel(OUT, X, PLAIN: tl.constexpr):
    program = tl.program_id(0)
    tl.atomic_add(OUT, tl.load(X + program))
    if PLAIN and program == 1:
        tl.store(OUT, 0.0)


@triton.jit
def scan_kernel(ENDS, OUT, N: tl.constexpr):
    row = tl.program_id(0)
    sequence = 0
    while tl.load(ENDS + sequence) <= row:
        sequence += 1
    tl.store(OUT + row * N + tl.arange(0, N), sequence)


@triton.jit
def chosen_kernel(X, Y, OUT, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(OUT + lane, tl.load(tl.where(lane % 2 == 0, X + lane, Y + lane)))


def kinds(launch: Callable[[], object]) -> Kinds:
    with trace() as traced:
        launch()
    assert not traced.unwatched
    return {finding.kind for finding in traced.findings}


@pytest.mark.parametrize("count", [16, 15, 17])
def test_lanes_outside_of_the_storage_are_named_and_do_not_happen(count: int) -> None:
    x, out = torch.randn(16), torch.zeros(16)
    with trace() as traced:
        copy_kernel[(3,)](x, out, count, N=8, SHIFT=0)
    assert torch.equal(out[: min(count, 16)], x[: min(count, 16)])
    found = [(one.kind, one.tensor, one.place, one.program) for one in traced.findings]
    if count == 17:
        assert found == [
            ("read_out_of_storage", "X", "element 16 of 16", (2, 0, 0)),
            ("write_out_of_storage", "OUT", "element 16 of 16", (2, 0, 0)),
        ]
        assert traced.findings[0].line.startswith("test_cpu_tier_trace.py:")
        assert "copy_kernel, program (2, 0, 0), reads X element 16" in traced.findings[0].sentence
    else:
        assert found == []


def test_the_source_line_is_the_load() -> None:
    with trace() as traced:
        copy_kernel[(3,)](torch.randn(16), torch.zeros(24), 17, N=8, SHIFT=0)
    first = copy_kernel.fn.__code__.co_firstlineno
    lines = [int(finding.line.partition(":")[2]) for finding in traced.findings]
    assert lines in ([first + 2], [first + 3])  # with or without the decorator's line


def test_a_narrow_view_of_a_wide_storage() -> None:
    wide = torch.randn(4, 16)
    with trace() as traced:
        copy_kernel[(1,)](wide[:, :8], torch.zeros(16), 16, N=16, SHIFT=0)
    assert [finding.kind for finding in traced.findings] == ["read_out_of_view"]
    assert traced.findings[0].count == 8
    assert kinds(lambda: copy_kernel[(1,)](wide[:, :8], torch.zeros(16), 8, N=16, SHIFT=0)) == set()


def test_a_row_of_a_contiguous_table_ends_where_the_next_begins() -> None:
    """As `docs/what-a-tier-sees.md` says: only behind the last row lies nothing of the table."""
    table = torch.randn(3, 6)
    with trace() as traced:
        padded_row_kernel[(3,)](table, torch.zeros(3, 6), 6, N=8)
    found = [(one.kind, one.place, one.program, one.count) for one in traced.findings]
    assert found == [("read_out_of_storage", "element 18 of 18", (2, 0, 0), 2)]
    assert kinds(lambda: padded_row_kernel[(2,)](table, torch.zeros(3, 6), 6, N=8)) == set()


def test_what_is_left_unwritten_and_what_is_read_before_it_is_written() -> None:
    x = torch.randn(16)

    def unwritten() -> None:
        copy_kernel[(2,)](x, torch.empty(16), 15, N=8, SHIFT=0)

    def unread() -> None:
        copy_kernel[(2,)](torch.empty(16), torch.zeros(16), 16, N=8, SHIFT=0)

    def honest() -> None:
        middle = torch.empty(16)
        copy_kernel[(2,)](x, middle, 16, N=8, SHIFT=0)
        copy_kernel[(2,)](middle, torch.empty(16).fill_(0), 15, N=8, SHIFT=0)

    assert kinds(unwritten) == {"left_unwritten"}
    assert kinds(unread) == {"read_never_written"}
    assert kinds(honest) == set()


def test_unwritten_names_the_element() -> None:
    with trace() as traced:
        copy_kernel[(2,)](torch.randn(16), torch.empty(4, 4), 15, N=8, SHIFT=0)
    assert traced.findings[0].sentence == "copy_kernel leaves OUT [3, 3] unwritten."


@pytest.mark.parametrize("batched", [True, False])
def test_conflicts_between_programs(batched: bool) -> None:
    def launch() -> None:
        neighbour_kernel[(3,)](torch.zeros(8), torch.zeros(24), N=8)

    with nullcontext() if batched else sequential():
        found = kinds(launch)
    assert "write_write" in found  # all programs store X
    assert found & {"read_write", "write_read"}  # and read what the next one stores in OUT


def test_programs_that_stay_apart_do_not_conflict() -> None:
    assert kinds(lambda: swap_kernel[(3,)](torch.randn(24), False, True, N=8)) == set()


def test_a_store_to_what_another_lane_reads_needs_a_barrier() -> None:
    x = torch.randn(24)
    assert kinds(lambda: swap_kernel[(3,)](x, False, False, N=8)) == {"write_after_read"}
    assert kinds(lambda: swap_kernel[(3,)](x, True, False, N=8)) == set()


def test_atomics_conflict_with_stores_only() -> None:
    x, out = torch.ones(4), torch.zeros(1)
    assert kinds(lambda: count_kernel[(4,)](out, x, False)) == set()
    assert out.item() == 4
    assert "write_write" in kinds(lambda: count_kernel[(4,)](out, x, True))


def test_an_order_of_programs_that_changes_bits() -> None:
    results = []
    for reverse in (False, True):
        x = torch.zeros(8)
        with sequential(reverse=reverse):
            neighbour_kernel[(3,)](x, torch.zeros(24), N=8)
        results.append(x)
    assert not torch.equal(*results)


@pytest.mark.parametrize("sequences", [2, 5])
def test_traffic_counts_each_program_once_although_it_ran_again(sequences: int) -> None:
    """A linear scan shows: loads grow with the number of sequences."""
    ends = torch.arange(1, sequences + 1, dtype=torch.int32)
    replays = ENGINE.counts.replays
    with trace() as traced:
        scan_kernel[(sequences,)](ends, torch.empty(sequences, 4), N=4)
    assert ENGINE.counts.replays > replays
    assert traced.findings == []
    scanned, stored = traced.traffic
    assert (scanned.tensor, scanned.programs) == ("ENDS", sequences)
    assert scanned.loads == sequences * (sequences + 1) // 2
    assert (scanned.loaded, scanned.loaded_distinct) == (4 * scanned.loads, 4 * sequences)
    assert (stored.stores, stored.stored, stored.stored_distinct) == (
        sequences,
        16 * sequences,
        16 * sequences,
    )


def test_lanes_that_all_programs_share_count_for_each() -> None:
    with trace() as traced:
        neighbour_kernel[(3,)](torch.zeros(8), torch.zeros(24), N=8)
    stored = {entry.tensor: entry for entry in traced.traffic}["X"]
    assert (stored.stores, stored.stored, stored.stored_distinct) == (3, 96, 32)


def test_a_pointer_chosen_between_two_tensors_is_still_watched() -> None:
    x, y, out = torch.zeros(4), torch.ones(4), torch.zeros(4)
    assert kinds(lambda: chosen_kernel[(1,)](x, y, out, N=4)) == set()
    assert out.tolist() == [0, 1, 0, 1]


def rotate_in_place(tile: int, packed: bool, dtype: torch.dtype) -> None:
    leaf, cos, sin, ends = inputs(packed, dtype)
    result = inplace.fused_mla_rope_inplace(leaf * 1, cos, sin, 4, 8, ends, tile=tile)
    result.backward(torch.randn(result.shape).to(dtype))


def rotate_out_of_place(tile: int, packed: bool, dtype: torch.dtype) -> None:
    leaf, cos, sin, ends = inputs(packed, dtype)
    result = out_of_place.fused_mla_rope_out_of_place(leaf, cos, sin, 4, 8, ends, tile=tile)
    result.backward(torch.randn(result.shape).to(dtype))


def pack(tile: int, packed: bool, dtype: torch.dtype) -> None:
    leaf, cos, sin, ends = inputs(packed, dtype)
    nope, rope = leaf.split([4, 8], dim=-1)
    result = concat.fused_mla_rope_concat(nope, rope, cos, sin, ends, tile=tile)
    result.backward(torch.randn(result.shape).to(dtype))


def split_key_and_value(tile: int, packed: bool, dtype: torch.dtype) -> None:
    leaf, cos, sin, ends = inputs(packed, dtype)
    shared = leaf.detach()[..., :1, :8].clone().requires_grad_()
    parts = kv_split.fused_mla_rope_kv_split(leaf, shared, cos, sin, 8, 7, 5, ends, tile=tile)
    torch.autograd.backward(parts, [torch.randn(part.shape).to(dtype) for part in parts])


def inputs(packed: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """t `[13, 3, 12]` or `[13, 1, 3, 12]`, tables `[13, 8]`, cu_seqlens `[4]` or None."""
    shape = (13, 3, 12) if packed else (13, 1, 3, 12)
    ends = torch.tensor([0, 5, 5, 12], dtype=torch.int32) if packed else None
    leaf = torch.randn(shape).to(dtype).requires_grad_()
    return leaf, torch.randn(13, 8), torch.randn(13, 8), ends


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("op", [rotate_in_place, rotate_out_of_place, pack, split_key_and_value])
def test_our_kernels_are_clean_for_every_tile(op: Callable[..., None], packed: bool) -> None:
    for tile in tiles.TILES:
        with trace() as traced:
            op(tile, packed, torch.bfloat16)
        assert [finding.sentence for finding in traced.findings] == []
        assert not traced.unchecked
        assert not traced.unwatched
        assert traced.traffic
