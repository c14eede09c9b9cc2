"""What a record keeps for pictures: the ulp histogram, and a map of a planted mismatch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.case import Case
from parity.catalog import find
from parity.coverage import covered
from parity.generate import plan
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.pictures import CELLS, ULP_BINS
from parity.record import Record
from parity.runner import run_case
from parity.spec import Input, OpSpec, Output

HALF_ULP = 6  # bin 7 - 1: more than a quarter of an ulp, up to a half
SPEC = OpSpec(
    name="third",
    candidate=f"{__name__}:right",
    reference=f"{__name__}:reference",
    inputs=(Input("x", "rows heads dim"),),
    outputs=(Output("y"),),
    axes={"heads": (6, 130), "dim": (8,)},
    layouts=("plain", "sbhd", "thd"),
    values=("normal",),
    tiles={"BLOCK_H": (4,)},
    terms=2,
)


def reference(
    x: torch.Tensor, *, compute_dtype: torch.dtype = torch.float32, magnitude: bool = False
) -> torch.Tensor:
    wide = x.to(compute_dtype)
    return (wide / 3 + wide / 7).to(x.dtype)


def right(x: torch.Tensor, BLOCK_H: int = 4) -> torch.Tensor:
    return reference(x)


def wrong(x: torch.Tensor, BLOCK_H: int = 4) -> torch.Tensor:
    """Heads beyond the last whole tile, odd lanes, first row."""
    off = torch.zeros_like(x)
    off.view(-1, *x.shape[-2:])[0, 4:6, 1::2] = 1000
    return reference(x) + off


def a_case(layout: str, **more: Any) -> Case:
    shapes = {"plain": {"tokens": 3}, "sbhd": {"seq": 3, "batch": 2}, "thd": {}}
    known: dict[str, Any] = {"axes": {"heads": 6, "dim": 8, **shapes[layout]}, "dtype": "bfloat16"}
    variants = {"x": "contiguous", "y.grad": "contiguous", "values": "normal"}
    if layout == "thd":
        variants |= {"cu_seqlens": "int32", "position_ids": "absent"}
    known |= {"variants": variants, "tile": {"BLOCK_H": 4}, "seed": 1}
    return Case("third", layout, **{**known, **more})


def ran(candidate: str, case: Case) -> Record:
    return run_case(replace(SPEC, candidate=f"{__name__}:{candidate}"), case)


@pytest.mark.parametrize("case", plan(SPEC, 0, 0)[:12], ids=lambda case: case.id)
def test_a_right_kernel_is_within_half_an_ulp_and_has_no_map(case: Case) -> None:
    record = ran("right", case)
    assert record.status == "passed"
    assert not record.maps
    assert set(record.ulps) == {"y", "x.grad"}
    if case.dtype != "float32":
        assert all(len(counts) <= HALF_ULP + 1 for counts in record.ulps.values())


def test_every_element_is_counted_once() -> None:
    record = ran("wrong", a_case("plain"))
    assert sum(record.ulps["y"]) == 3 * 6 * 8
    assert len(record.ulps["y"]) > HALF_ULP + 1
    assert len(record.ulps["x.grad"]) <= HALF_ULP + 1


def test_nan_and_infinity_have_a_bin_of_their_own() -> None:
    record = ran("absent", a_case("plain"))
    assert len(record.ulps["y"]) == ULP_BINS
    assert record.ulps["y"][-1] == 2


def absent(x: torch.Tensor, BLOCK_H: int = 4) -> torch.Tensor:
    y = reference(x).clone()
    y[0, 0, :2] = torch.tensor([torch.nan, torch.inf])
    return y


@pytest.mark.parametrize(
    ("layout", "more", "sequences", "tokens"),
    [
        ("plain", {}, [0], 3),
        ("sbhd", {}, [0, 3], 6),
        ("thd", {"lengths": (0, 2, 3), "gaps": (0, 0, 0), "tail": 2}, [0, 2, 5], 7),
    ],
)
def test_the_map_shows_heads_lanes_and_sequences(
    layout: str, more: dict[str, Any], sequences: list[int], tokens: int
) -> None:
    found = ran("wrong", a_case(layout, **more)).maps["y"]
    assert found["shape"] == [tokens, 6, 8]
    assert found["sequences"] == sequences
    assert found["tile"] == 4
    assert found["rotated"] == []
    clean = ["00000000"] * (tokens - 1)
    assert found["by_lane"] == ["05050505", *clean]  # two heads of six
    assert found["by_head"] == ["000088", *["000000"] * (tokens - 1)]  # four lanes of eight


def scaled(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    compute_dtype: torch.dtype = torch.float32,
    magnitude: bool = False,
    **tile: int,
) -> torch.Tensor:
    return (x.to(compute_dtype) * w.to(compute_dtype)).to(x.dtype)


def scaled_wrong(x: torch.Tensor, w: torch.Tensor, **tile: int) -> torch.Tensor:
    """The last two heads of the gradient of w are off, in odd lanes."""
    off = torch.zeros_like(w)
    off[4:, 1::2] = 1000
    return scaled(x, w) + (off * (w - w.detach())).sum().to(x.dtype)


@pytest.mark.parametrize("layout", SPEC.layouts)
def test_the_map_of_a_gradient_without_rows_is_one_row(layout: str) -> None:
    spec = replace(
        SPEC,
        candidate=f"{__name__}:scaled_wrong",
        reference=f"{__name__}:scaled",
        inputs=(*SPEC.inputs, Input("w", "heads dim")),
        sums=("w.grad",),
        layouts=(layout,),
    )
    case = next(case for case in plan(spec, 0, 0) if case.axes["heads"] == 6)
    ((name, found),) = run_case(spec, replace(case, tile={"BLOCK_H": 4})).maps.items()
    assert name == "w.grad"
    assert (found["shape"], found["sequences"], found["tile"]) == ([1, 6, 8], [], 4)
    assert found["by_lane"] == ["05050505"]
    assert found["by_head"] == ["000088"]


def adds_one(**arguments: Any) -> torch.Tensor:
    return fused_mla_rope_out_of_place(**arguments) + 1


def test_the_map_of_an_op_with_tables_shows_its_rotated_lanes() -> None:
    spec = replace(find("fused_mla_rope_out_of_place", "parity"), candidate=f"{__name__}:adds_one")
    case = next(case for case in plan(spec, 0, 0) if not case.flags["rope_first"])
    ((_, found),) = run_case(spec, case).maps.items()
    first = case.axes["nope_dim"]
    assert found["rotated"] == [first, first + case.axes["rope_dim"]]


def test_a_large_map_is_coarse_and_loses_nothing() -> None:
    case = a_case("plain", axes={"heads": 130, "dim": 8, "tokens": 3})
    found = ran("wrong", case).maps["y"]
    assert [len(row) for row in found["by_head"]] == [CELLS] * 3
    assert found["by_head"][0].strip("0")
    assert not "".join(found["by_head"][1:]).strip("0")


def test_coverage_counts_values_that_never_ran() -> None:
    found = covered(SPEC, [a_case("plain"), a_case("sbhd")])
    assert found["axes"]["layout"] == [["plain", 1], ["sbhd", 1], ["thd", 0]]
    assert found["axes"]["dtype"] == [["float32", 0], ["bfloat16", 2], ["float16", 0]]
    seen, possible = found["pairs"]
    assert 0 < seen < possible
