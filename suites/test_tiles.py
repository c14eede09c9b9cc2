"""The rule for tiles and warps gives only what Triton can launch."""

import pytest
import torch

from parity.catalog import resolve
from parity.kernels.concat import fused_mla_rope_concat
from parity.kernels.kv_split import fused_mla_rope_kv_split
from parity.kernels.launch import Launch
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.kernels.positions import search_steps
from parity.kernels.tiles import TILES, choose_tile, choose_warps, padded
from parity.reference.concat import fused_mla_rope_concat as reference
from parity.runner import device


def test_warps_are_a_power_of_two_for_every_tile() -> None:
    """Three warps compile on no GPU, and the interpreter ignores the number."""
    assert {choose_warps(elements) for elements in range(1, 10_000)} == {1, 2, 4, 8}
    assert [choose_warps(512 * n) for n in (1, 2, 3, 4, 7, 8, 40)] == [1, 2, 2, 4, 4, 8, 8]
    assert [choose_warps(512 * n - 1) for n in (2, 4, 8)] == [1, 2, 4]


def test_every_tile_that_is_offered_is_an_axis_of_every_op() -> None:
    for spec in resolve("parity").values():
        assert set(spec.tiles["tile"]) == {None, *TILES}


def test_a_tile_is_offered_or_refused() -> None:
    assert all(choose_tile(None, lanes) in TILES for lanes in range(1, 40_000, 97))
    with pytest.raises(ValueError, match="None chooses one"):
        choose_tile(3, 64)


def test_lanes_are_padded_to_the_next_power_of_two() -> None:
    assert [padded(lanes) for lanes in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 1, 2, 4, 4, 8, 8, 16]


def test_the_search_takes_few_steps_and_enough() -> None:
    """Every index from -1 to the number of sequences must be reachable."""
    assert [search_steps(n) for n in (0, 1, 63, 64, 4223, 4224, 10**6)] == [1, 1, 1, 2, 2, 3, 4]
    assert all(65 ** search_steps(n) >= n + 2 for n in range(5000))


def test_a_token_is_found_among_thousands_of_sequences() -> None:
    """Three steps of the search: 4,300 sequences, most of them empty, some places repeated."""
    lengths = torch.zeros(4300, dtype=torch.int64)
    lengths[[0, 63, 64, 65, 4223, 4224, 4225, 4299]] = torch.tensor([130, 1, 3, 1, 2, 1, 1, 2])
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device())
    rope = torch.randn(int(cu_seqlens[-1]) + 2, 3, 8, device=device())
    nope, cos, sin = (torch.randn(n, 8, device=device()) for n in (1, 130, 130))
    nope = nope.expand(rope.shape[0], 3, 8)
    found = fused_mla_rope_concat(nope, rope, cos, sin, cu_seqlens)
    assert torch.equal(found, reference(nope, rope, cos, sin, cu_seqlens))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Kernels, with how many programs each was launched and how wide its halves are."""
    seen: list[tuple[str, int, int]] = []
    stock = Launch.__call__

    def noting(launch: Launch, *tensors: torch.Tensor | None) -> None:
        seen.append((launch.kernel.__name__, launch.programs, launch.constants["HALF"]))
        stock(launch, *tensors)

    monkeypatch.setattr(Launch, "__call__", noting)
    return seen


def data(heads: int, needed: bool = True) -> torch.Tensor:
    return torch.ones(5, 1, heads, 4, device=device(), requires_grad=needed)


def test_no_program_and_no_lane_is_for_nothing(launched: list[tuple[str, int, int]]) -> None:
    """5 tokens of 2 heads in tiles of 4 rows: 3 programs, and 2 that sum over the heads."""
    table = torch.ones(5, 4, device=device())
    fused_mla_rope_out_of_place(data(2), table, table, 0, 4, tile=4).sum().backward()
    fused_mla_rope_concat(data(2), data(2), table, table, tile=4).sum().backward()
    for needed in ((True, True), (True, False), (False, True)):
        parts = data(2, needed[0]), data(1, needed[1])
        key, _ = fused_mla_rope_kv_split(*parts, table, table, 4, 2, 2, tile=4)
        key.sum().backward()
    assert launched == [
        ("rotate_kernel", 3, 2), ("rotate_kernel", 3, 2),
        ("concat_kernel", 3, 2), ("concat_backward_kernel", 3, 2),
        ("kv_split_kernel", 3, 2), ("kv_split_backward_kernel", 5, 2),
        ("kv_split_kernel", 3, 2), ("kv_split_backward_kernel", 3, 2),
        ("kv_split_kernel", 3, 2), ("kv_split_backward_kernel", 2, 2),
    ]  # fmt: skip
