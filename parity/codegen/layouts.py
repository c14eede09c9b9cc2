"""Which warp holds which element of a load or store, read from TTGIR, and where PTX has barriers.

Pure text work.  The layouts are those of Triton's `TritonGPUAttrDefs.td`: a blocked layout gives
each warp a block of `sizePerThread * threadsPerWarp` elements and deals the warps out along the
axes in `order`, around again where the tile is larger; where it is smaller, several warps hold the
same elements.  A linear layout is a sum (xor) of one basis vector for each bit of register, lane
and warp.  A slice layout is its parent's without one axis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

Masks = npt.NDArray[np.uint32]

_ALIAS = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_LOCATION = re.compile(r'^(#loc\d*) = loc\("([^"]+)":(\d+):\d+\)$', re.MULTILINE)
_NAMED_LOCATION = re.compile(r'^(#loc\d*) = loc\("[^"]*"\((#loc\d*)\)\)$', re.MULTILINE)
_CALL_LOCATION = re.compile(r"^(#loc\d*) = loc\(callsite\((#loc\d*) at #loc\d*\)\)$", re.MULTILINE)
_ACCESS = re.compile(
    r"tt\.(load|store) .*? : tensor<((?:\d+x)+)!tt\.ptr<[^>]*>, (#.*?)> loc\((#loc\d*)\)$",
    re.MULTILINE,
)
_FIELD = re.compile(r"(\w+) = (\[[^\]]*\](?:, ?\[[^\]]*\])*\]?|\d+)")
_PTX_FILE = re.compile(r'^\s*\.file\s+(\d+) "([^"]+)"', re.MULTILINE)
_PTX_PLACE = re.compile(r"^\s*\.loc\s+(\d+) (\d+) ")
_PTX_BARRIER = re.compile(r"\bbar(rier)?\.(?!warp\b|arrive\b)")


@dataclass(frozen=True)
class Access:
    """One load or store in TTGIR: `file.py:12`, the shape of its tile, its layout as text."""

    kind: str
    line: str
    shape: tuple[int, ...]
    layout: str


def accesses(ttgir: str) -> list[Access]:
    """Every load and store of a tile, in order."""
    aliases = dict(_ALIAS.findall(ttgir))
    lines = _lines(ttgir)
    return [
        Access(kind, lines.get(place, ""), _sizes(shape), _expanded(layout, aliases))
        for kind, shape, layout, place in _ACCESS.findall(ttgir)
    ]


def _lines(ttgir: str) -> dict[str, str]:
    """`file.py:12` of every location, the innermost one where a function was inlined."""
    lines = {place: f"{file.rpartition('/')[2]}:{n}" for place, file, n in _LOCATION.findall(ttgir)}
    links = dict(_NAMED_LOCATION.findall(ttgir)) | dict(_CALL_LOCATION.findall(ttgir))
    for place in links:
        end = place
        while end in links:
            end = links[end]
        lines[place] = lines.get(end, "")
    return lines


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) for size in shape.split("x") if size)


def _expanded(layout: str, aliases: Mapping[str, str]) -> str:
    """A layout with every alias in it written out."""
    return re.sub(r"#\w+\b(?!\.)", lambda found: aliases.get(found[0], found[0]), layout)


def holders(layout: str, shape: tuple[int, ...]) -> Masks | None:
    """For each element of a tile of this shape, a bit for each warp that holds it.

    None for a layout that is none of blocked, linear and slice.
    """
    if layout.startswith("#ttg.slice<"):
        found = re.search(r"dim = (\d+), parent = (#ttg\..*)\}>", layout)
        if found is None:
            return None
        axis = int(found[1])
        parent = holders(found[2], (*shape[:axis], 1, *shape[axis:]))
        return None if parent is None else parent.squeeze(axis)
    fields = {name: _numbers(text) for name, text in _FIELD.findall(layout)}
    if layout.startswith("#ttg.blocked<"):
        return _blocked(fields, shape)
    return _linear(fields, shape) if layout.startswith("#ttg.linear<") else None


def _numbers(text: str) -> Any:
    """A list of integers or of lists of integers."""
    if text.startswith("[["):
        return [_numbers(part) for part in re.findall(r"\[[\d, ]*\]", text)]
    return [int(number) for number in re.findall(r"\d+", text)]


def _blocked(fields: Mapping[str, Sequence[int]], shape: tuple[int, ...]) -> Masks:
    warps, order = fields["warpsPerCTA"], fields["order"]
    blocks = [a * b for a, b in zip(fields["sizePerThread"], fields["threadsPerWarp"], strict=True)]
    masks = np.zeros(shape, np.uint32)
    at = np.indices(shape)
    for warp in product(*map(range, warps)):
        number, step = 0, 1
        for axis in order:
            number, step = number + step * warp[axis], step * warps[axis]
        here = np.ones(shape, bool)
        for axis, (place, block) in enumerate(zip(warp, blocks, strict=True)):
            count = min(warps[axis], max(1, shape[axis] // block))  # different blocks of warps
            here &= at[axis] // block % count == place % count
        masks[here] |= np.uint32(1 << number)
    return masks


def _linear(fields: Mapping[str, Sequence[Sequence[int]]], shape: tuple[int, ...]) -> Masks:
    masks = np.zeros(shape, np.uint32)
    inside = _sums([*fields["register"], *fields["lane"]], len(shape))
    for number, origin in enumerate(_sums(fields["warp"], len(shape))):
        masks[tuple((inside ^ origin).T)] |= np.uint32(1 << number)
    return masks


def _sums(bases: Sequence[Sequence[int]], axes: int) -> npt.NDArray[np.int64]:
    """Every sum of basis vectors, `[2^n, axes]`; the last basis is the highest bit."""
    found = np.zeros((1, axes), np.int64)
    for basis in bases:
        found = np.concatenate([found, found ^ np.array(basis)])
    return found


def waits(ptx: str, loaded: str, stored: str) -> bool:
    """Whether a barrier stands between the last load of one line and the first store of another."""
    files = {number: name.rpartition("/")[2] for number, name in _PTX_FILE.findall(ptx)}
    place, last, barriers = "", -1, []
    for number, text in enumerate(ptx.splitlines()):
        if found := _PTX_PLACE.match(text):
            place = f"{files.get(found[1], '')}:{found[2]}"
        elif "ld.global" in text and place == loaded:
            last = number
        elif _PTX_BARRIER.search(text):
            barriers.append(number)
        elif "st.global" in text and place == stored:
            return any(last < barrier for barrier in barriers)
    return False
