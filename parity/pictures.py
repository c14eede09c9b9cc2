"""What a report draws of a case: how far results are from the oracle, and where they are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .case import Case
from .checks import oracle_mismatch, reference_mismatch
from .evidence import Evidence, Lanes
from .inputs import dims
from .locus import cube, heads_of_a_program
from .record import Finding

ULP_BINS = 32
SMALLEST = -6  # bin 1 is up to 2^-6 ulp, bin n up to 2^(n - 7), bin 30 all beyond 2^22
CELLS = 64  # of a map, along each axis
DEPTHS = "0123456789abcdef"  # share of a cell's elements that differ: 0 is none, f is all
VALUE_CHECKS = ("values", "reference_bits", "written")


def ulp_histograms(evidence: Evidence) -> dict[str, list[int]]:
    """How many elements of each result are how many ulp of their dtype from the oracle.

    Bin 0 holds exact elements, bin 31 those that are NaN or infinite on one side only, the bins
    between powers of two; zeros at the end are left out.
    """
    return {
        name: _counted(bins[start:end])
        for joined in evidence.joined
        for bins in [_bins(joined.lanes)]
        for name, (start, end) in joined.places.items()
    }


def _bins(lanes: Lanes) -> NDArray[np.int64]:
    actual, oracle = lanes.actual.double().numpy(), lanes.oracle.numpy()
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(np.abs(actual - oracle) / lanes.step.numpy())
    # (2^(k-1), 2^k] ends at a power of two, where a tie of the one rounding lies
    bins: NDArray[np.int64] = np.clip(exponent - (mantissa == 0.5) - SMALLEST + 1, 1, ULP_BINS - 2)
    bins[~(np.isfinite(actual) & np.isfinite(oracle))] = ULP_BINS - 1
    bins[(actual == oracle) | (np.isnan(actual) & np.isnan(oracle))] = 0
    return bins


def _counted(bins: NDArray[np.int64]) -> list[int]:
    counts: list[int] = np.bincount(bins, minlength=ULP_BINS).tolist()
    while counts and not counts[-1]:
        counts.pop()
    return counts


def mismatch_maps(evidence: Evidence, findings: list[Finding]) -> dict[str, dict[str, Any]]:
    """Where the results that a check of values found wrong differ, by tensor.

    ``shape`` is (tokens, heads, lanes), batch after batch, or (1, heads, lanes) of a result without
    rows.  ``by_lane`` and ``by_head`` are maps of at most 64 x 64 cells, a text of hex digits for
    each row: the share of the cell that differs.  ``sequences`` are the tokens that begin one (none
    without rows), ``rotated`` is the range of rotated lanes, and ``tile`` the number of heads of a
    program, 0 where programs do not begin with a head.
    """
    found = {}
    for name in {item.tensor for item in findings if item.check in VALUE_CHECKS}:
        lanes = evidence.lanes(name)
        mismatch = oracle_mismatch(lanes) or reference_mismatch(lanes)
        if mismatch is not None:
            found[name] = _map(evidence, name, mismatch.where)
    return found


def _map(evidence: Evidence, name: str, where: torch.Tensor) -> dict[str, Any]:
    case, by_row = evidence.seen.inputs.case, evidence.by_row(name)
    hit = cube(where, case, by_row=by_row)
    rotated = evidence.rotated(name)
    return {
        "shape": list(hit.shape),
        "by_lane": _cells(hit.float().mean(1)),
        "by_head": _cells(hit.float().mean(2)),
        "sequences": _sequences(case) if by_row else [],
        "rotated": [] if rotated is None else _range(cube(rotated, case, by_row=by_row)),
        "tile": heads_of_a_program(case, hit.shape[1]),
    }


def _range(lanes: torch.Tensor) -> list[int]:
    """The first lane that is marked, and the one behind the last; empty where none is."""
    marked = lanes.flatten(0, 1).any(0).nonzero().flatten().tolist()
    return [marked[0], marked[-1] + 1] if marked else []


def _cells(share: torch.Tensor) -> list[str]:
    """A map ``[rows, columns]`` of shares, coarsened; what differs at all stays visible."""
    for axis in (0, 1):
        size = share.shape[axis]
        count = min(CELLS, size)
        cell = torch.arange(size, device=share.device) * count // max(size, 1)
        shape = [count, share.shape[1]] if axis == 0 else [share.shape[0], count]
        sums = share.new_zeros(shape).index_add(axis, cell, share)
        sizes = torch.bincount(cell, minlength=count).view(-1, *[1] * (1 - axis))
        share = sums / sizes
    depths = (share * (len(DEPTHS) - 1)).ceil().int().clamp(max=len(DEPTHS) - 1)
    return ["".join(DEPTHS[depth] for depth in row) for row in depths.tolist()]


def _sequences(case: Case) -> list[int]:
    if case.layout == "plain":
        return [0]
    if case.layout != "thd":
        return list(range(0, case.axes["seq"] * case.axes["batch"], case.axes["seq"]))
    starts, start = [], 0
    for length, gap in zip(case.lengths, case.gaps, strict=True):
        if length:
            starts.append(start)
        start += (length + gap) // case.cp_size
    return starts + ([start] if start < dims(case)["tokens"] else [])
