"""How many rows a program handles, and with how many warps."""

TILES: tuple[int, ...] = (1, 2, 4, 8, 16, 32)

# From the sweep in docs/tiles.md: small tiles, since a copy at the memory limit needs many programs
# in flight more than it needs long ones.
_LANES = 2560
_LANES_PER_WARP = 512  # 16 a thread, two 128-bit accesses of a 16-bit dtype


def choose_tile(tile: int | None, lanes: int) -> int:
    """``tile`` itself, or by rule: 16 rows, halved until the tile holds at most 2560 lanes.

    ``lanes`` is what a row of the tile holds.

    Raises:
        ValueError: a tile that is not in ``TILES``.
    """
    if tile is None:
        return next((rows for rows in (16, 8, 4, 2) if rows * lanes <= _LANES), 1)
    if type(tile) is not int or tile not in TILES:
        raise ValueError(f"Expected tile in {TILES} but got tile={tile!r}; None chooses one.")
    return tile


def choose_warps(elements: int) -> int:
    """1, 2, 4 or 8 warps for a tile of ``elements``, so that none repeats the work of another."""
    return next((warps for warps in (8, 4, 2) if warps * _LANES_PER_WARP <= elements), 1)


def padded(lanes: int) -> int:
    """The power of two that holds so many lanes, 0 for none; far quicker than Triton's own."""
    return 1 << (lanes - 1).bit_length() if lanes else 0
