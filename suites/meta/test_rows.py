"""Which axes a result has is told by what it means, not by sizes that are equal by chance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Input, OpSpec, Output
from parity.case import Case
from parity.generate import plan
from parity.guards import HOST
from parity.inputs import build_inputs
from parity.oracle import run_reference
from parity.rows import by_row, output_begins

PACK: dict[str, Any] = {"lengths": (1,), "gaps": (0,), "tail": 0}


def once(x: Tensor, modes: dict[str, Any]) -> Tensor:
    return x.to(modes.get("compute_dtype", torch.float32))


def kept(*, x: Tensor, **modes: Any) -> Tensor:
    return once(x, modes).to(x.dtype)


def summed_rows(*, x: Tensor, **modes: Any) -> Tensor:
    return once(x, modes).flatten(0, -3).sum(0).to(x.dtype)


def summed_heads(*, x: Tensor, **modes: Any) -> Tensor:
    return once(x, modes).sum(-2).to(x.dtype)


def swapped(*, x: Tensor, **modes: Any) -> Tensor:
    """[batch, seq, heads, dim] of sbhd."""
    return once(x, modes).transpose(0, 1).contiguous().to(x.dtype)


def begins(function: str, layout: str, sizes: dict[str, int]) -> tuple[bool, bool]:
    """Whether the output begins with rows, and with rows and heads, in a case of these sizes, which
    is the first one asked about."""
    name = f"{__name__}:{function}"
    spec = OpSpec(
        name=f"{function} {layout} {sizes}",
        candidate=name,
        reference=name,
        inputs=(Input("x", "rows heads dim"),),
        outputs=(Output("y"),),
        axes={"heads": (1, 2, 3), "dim": (1, 2, 3)},
        layouts=(layout,),
        sums=("y",),
    )
    case: Case = replace(plan(spec, 0, 0)[0], axes=sizes, **(PACK if layout == "thd" else {}))
    inputs = build_inputs(spec, case, HOST)
    _, outputs = run_reference(inputs, inputs.values(), {})
    shape = outputs["y"].shape
    return by_row(inputs, "y", shape), output_begins(inputs, "y", shape, "rows heads")


ONES = {"heads": 1, "dim": 1}


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ("plain", ONES | {"tokens": 1}),
        ("thd", {"heads": 1, "dim": 3}),
        ("sbhd", ONES | {"seq": 1, "batch": 1}),
        ("sbhd", {"heads": 3, "dim": 2, "seq": 3, "batch": 3}),
        ("bshd", ONES | {"seq": 2, "batch": 1}),
    ],
)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("kept", (True, True)),
        ("summed_rows", (False, False)),
        ("summed_heads", (True, False)),
    ],
)
def test_axes_of_an_output(
    function: str, expected: tuple[bool, bool], layout: str, sizes: dict[str, int]
) -> None:
    assert begins(function, layout, sizes) == expected


def test_the_two_axes_of_rows_are_told_apart() -> None:
    assert begins("swapped", "sbhd", ONES | {"seq": 2, "batch": 2}) == (False, False)
