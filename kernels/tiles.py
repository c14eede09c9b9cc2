"""How many rows a program handles, and with how many warps."""

TILES: tuple[int, ...] = (1, 2, 4, 8, 16, 32)

_LANES = 16384  # of a tile: 128 a thread, which still fit its registers
_LANES_PER_WARP = 256  # 8 a thread, one 128-bit access of a 16-bit dtype


def choose_tile(tile: int | None, lanes: int) -> int:
    """``tile`` itself, or by rule: 16 rows, halved until the tile fits the registers.

    ``lanes`` is what a row of the tile holds.

    Raises:
        ValueError: a tile that is not in ``TILES``.
    """
    if tile is None:
        return next((rows for rows in (16, 8, 4, 2) if rows * lanes <= _LANES), 1)
    if tile not in TILES:
        raise ValueError(f"Expected tile in {TILES} but got tile={tile!r}; None chooses one.")
    return tile


def choose_warps(elements: int) -> int:
    """1, 2 or 4 warps for a tile of ``elements``, so that no warp repeats the work of another."""
    return next((warps for warps in (4, 2) if warps * _LANES_PER_WARP <= elements), 1)
