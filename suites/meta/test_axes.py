"""Axes that hide faults when they are short: far positions, every rank of a group, batch first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from parity.case import Case
from parity.catalog import resolve
from parity.generate import FAR, plan
from parity.reference.out_of_place import fused_mla_rope_out_of_place as reference
from parity.runner import run_case
from parity.spec import Input, OpSpec, Output

Tensor = torch.Tensor
OPS = resolve("parity")
NAME = "fused_mla_rope_out_of_place"


@pytest.mark.parametrize("spec", OPS.values(), ids=lambda spec: spec.name)
def test_every_plan_has_every_rank_and_far_positions(spec: OpSpec) -> None:
    cases = plan(spec, 0, 0)
    packed = [case for case in cases if case.layout == "thd"]
    ranks = {(case.cp_size, case.cp_rank) for case in packed}
    assert ranks == {(size, rank) for size in spec.cp_sizes for rank in range(size)}
    assert max(spec.cp_sizes) == 8
    far = [case for case in cases if case.axes["spare_positions"] == FAR]
    assert {case.layout for case in far} == {*spec.layouts}
    if spec.has("position_ids"):
        ids = {case.variants["position_ids"] for case in far if case.layout == "thd"}
        assert ids == {"absent", "int32", "int64"}


def far_cases() -> list[Case]:
    """Cases whose positions lie anywhere in a far table."""
    cases = [case for case in plan(OPS[NAME], 0, 0) if case.axes["spare_positions"] == FAR]
    return [case for case in cases if case.variants.get("position_ids", "absent") != "absent"][:2]


def narrow_positions(t: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    """Positions kept in 16 bits on their way."""
    ids = options.pop("position_ids", None)
    if ids is not None:
        ids = (ids.to(torch.int16).to(ids.dtype)) % cos.shape[0]
    return reference(t, cos, sin, position_ids=ids, **options)


@pytest.mark.parametrize(
    ("candidate", "passes"),
    [
        (f"{__name__}:narrow_positions", False),
        ("parity.reference.out_of_place:fused_mla_rope_out_of_place", True),
    ],
)
def test_positions_in_sixteen_bits_are_found(candidate: str, passes: bool) -> None:
    spec = replace(OPS[NAME], candidate=candidate, tiles={}, refuses=(), outside="unspecified")
    cases = [replace(case, tile={}) for case in far_cases()]
    assert len(cases) == 2
    assert [run_case(spec, case).status == "passed" for case in cases] == [passes] * 2


def scaled(x: Tensor, cos: Tensor, *, compute_dtype: Any = None, magnitude: bool = False) -> Tensor:
    """y[b, s] = x[b, s] * cos[s], batch first."""
    wide = x.to(compute_dtype or torch.float32)
    return (wide * cos[: x.shape[1], None].to(wide.dtype)).to(x.dtype)


def scaled_by_batch(x: Tensor, cos: Tensor) -> Tensor:
    """As if the sequence were the first axis."""
    return (x.float() * cos[: x.shape[0], None, None].float()).to(x.dtype)


@pytest.mark.parametrize(("name", "passes"), [("scaled", True), ("scaled_by_batch", False)])
def test_batch_first_is_a_layout_like_the_others(name: str, passes: bool) -> None:
    spec = OpSpec(
        name="scaled",
        candidate=f"{__name__}:{name}",
        reference=f"{__name__}:scaled",
        inputs=(Input("x", "rows heads dim"), Input("cos", "positions dim", kind="cos")),
        outputs=(Output("y"),),
        axes={"heads": (1, 3), "dim": (2, 4)},
        layouts=("bshd",),
        values=("normal",),
        terms=1,
    )
    statuses = {run_case(spec, case).status for case in plan(spec, 0, 0)}
    assert ("failed" not in statuses) is passes
