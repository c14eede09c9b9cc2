"""The sweep behind the rule for tiles and warps: ``python -m parity.bench.sweep FILE.json``.

Times every op at two production row widths with every tile and 1 to 8 warps, and prints the best
pairs beside the one that ``kernels/tiles.py`` chooses.  Needs a GPU; takes some minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ..exports import export_json, refuse_unwritable
from .workloads import OURS, Workload, backward, buffers, copy, forward

SHAPES = ((4096, 64, 512, 64), (4096, 128, 128, 64))
OPS = ("concat", "out_of_place", "inplace", "kv_split")
WARPS = (1, 2, 4, 8)
BEST = 3


def main() -> None:
    """Print a table and write every figure to the file named on the command line."""
    import torch

    if len(sys.argv) != 2:
        raise SystemExit("Expected one file for the figures; name it, as in sweep.json.")
    file = Path(sys.argv[1])
    refuse_unwritable(file)
    rows: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for work in _workloads():
            for is_backward in (False, True):
                found = sorted(_times(work, is_backward), key=lambda row: row["microseconds"])
                rows += found
                sys.stdout.write("\n".join(_lines(work, is_backward, found)) + "\n")
                sys.stdout.flush()
    export_json(file, {"schema_version": 1, "rows": rows})


def _workloads() -> Iterator[Workload]:
    for op in OPS:
        for tokens, heads, nope, rope in SHAPES:
            if op != "kv_split" or nope == 128:
                yield Workload(op, tokens, heads, nope, rope, value=128 * (op == "kv_split"))


def _times(work: Workload, is_backward: bool) -> Iterator[dict[str, Any]]:
    import torch

    from .timing import replayed

    tiles: Any = import_module("parity.kernels.tiles")
    launch: Any = import_module("parity.kernels.launch")
    chosen_tile, chosen_warps = tiles.choose_tile, tiles.choose_warps
    make = backward if is_backward else forward
    copies = [copy(work, is_backward=is_backward, device=torch.device("cuda")) for _ in range(3)]
    held = [buffers(work, torch.device("cuda")) for _ in range(3)]
    for tile in (None, *tiles.TILES):
        for warps in (None,) if tile is None else WARPS:
            tiles.choose_tile = chosen_tile if tile is None else _always(tile)
            tiles.choose_warps = chosen_warps if warps is None else _always(warps)
            launch.launches.clear()  # what was worked out with other choices
            calls = [make(work, OURS, each) for each in held]
            times = replayed({"ours": calls, "copy": copies}, rounds=9)
            yield {
                "workload": work.name,
                "pass": "backward" if is_backward else "forward",
                "tile": tile,
                "warps": warps,
                "microseconds": times["ours"],
                "ratio": times["ours"] / times["copy"],
            }
    tiles.choose_tile, tiles.choose_warps = chosen_tile, chosen_warps


def _always(value: int) -> Any:
    return lambda *_: value


def _lines(work: Workload, is_backward: bool, rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{work.name} {'backward' if is_backward else 'forward'}"
    for row in [*rows[:BEST], *(row for row in rows if row["tile"] is None)]:
        name = f"tile {row['tile']}, {row['warps']} warps" if row["tile"] else "the rule"
        yield f"  {name}: {row['microseconds']:.1f} us, {row['ratio']:.3f} of the copy"


if __name__ == "__main__":
    main()
