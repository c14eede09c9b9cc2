"""The rule for tiles and warps gives only what Triton can launch."""

import pytest

from parity.kernels.tiles import TILES, choose_tile, choose_warps


def test_warps_are_a_power_of_two_for_every_tile() -> None:
    """Three warps compile on no GPU, and the interpreter ignores the number."""
    assert {choose_warps(elements) for elements in range(1, 5000)} == {1, 2, 4}
    assert [choose_warps(256 * n) for n in (1, 2, 3, 4)] == [1, 2, 2, 4]


def test_a_tile_is_offered_or_refused() -> None:
    assert all(choose_tile(None, lanes) in TILES for lanes in range(1, 40_000, 97))
    with pytest.raises(ValueError, match="None chooses one"):
        choose_tile(3, 64)
