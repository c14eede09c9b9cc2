"""Correct ops of kinds that ours are not, each beside a wrong one of its kind that is found."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import Input, OpSpec, Output
from parity.generate import plan
from parity.inputs import dims
from parity.runner import run_case
from parity.spec import STRIDES

SIZES = {"heads": (1, 2, 3), "dim": (1, 2, 5)}
X = Input("x", "rows heads dim", strides=STRIDES)
PACKED: dict[str, Any] = {
    "inputs": (Input("x", "rows heads dim"), Input("cu_seqlens", kind="cu_seqlens")),
    "layouts": ("thd",),
}


def summed(x: Tensor, compute_dtype: torch.dtype = torch.float32, **_: Any) -> Tensor:
    return x.to(compute_dtype).sum().to(x.dtype)


def in_storage(x: Tensor) -> Tensor:
    return x.flatten().cumsum(0)[-1]


def lanes(x: Tensor, compute_dtype: torch.dtype = torch.float32, **_: Any) -> Tensor:
    return x.to(compute_dtype).flatten(0, 1).sum(0).to(x.dtype)


def without_last_row(x: Tensor) -> Tensor:
    return lanes(torch.cat([x[:-1], 0 * x[-1:]]))


def each(
    x: Tensor, cu_seqlens: Tensor, compute_dtype: torch.dtype = torch.float32, **_: Any
) -> Tensor:
    """[sequences, heads, dim]: the rows of every sequence, added."""
    wide, ends = x.to(compute_dtype), cu_seqlens.tolist()
    return torch.stack([wide[a:b].sum(0) for a, b in pairwise(ends)]).to(x.dtype)


def one_row_short(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    rows = [x[a : max(a, b - 1)].float().sum(0) for a, b in pairwise(cu_seqlens.tolist())]
    return torch.stack(rows).to(x.dtype)


def kept(x: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """The tensor, and a copy that has no gradient."""
    copies = [x.clone(memory_format=torch.contiguous_format) for _ in range(2)]
    return copies[0], copies[1].detach()


def wrong_one_kept(x: Tensor) -> tuple[Tensor, Tensor]:
    return kept(x)[::-1]


def added(x: Tensor, y: Tensor, compute_dtype: torch.dtype = torch.float32, **_: Any) -> Tensor:
    return (x.to(compute_dtype) + y.to(compute_dtype)).to(x.dtype)


def transposed(x: Tensor, y: Tensor) -> Tensor:
    return added(x, y).transpose(0, 1).contiguous().transpose(0, 1)


def found(reference: str, candidate: str, **how: Any) -> list[str]:
    """The checks that fail in some planned case."""
    settings: dict[str, Any] = {"inputs": (X,), "outputs": (Output("y"),), "axes": SIZES}
    settings |= {"gradients": STRIDES, "values": ("normal", "subnormal", "paired")}
    names = {"candidate": f"{__name__}:{candidate}", "reference": f"{__name__}:{reference}"}
    spec = OpSpec(name=candidate, **names, **(settings | how))
    records = [run_case(spec, case) for case in plan(spec, 60, 3)]
    return sorted({finding.check for record in records for finding in record.findings})


TWO = {"outputs": (Output("y"), Output("kept"))}
PAIR = {"inputs": (X, Input("y", "rows heads dim", strides=STRIDES))}


@pytest.mark.parametrize(
    ("reference", "wrong", "how"),
    [
        ("summed", "in_storage", {}),
        ("lanes", "without_last_row", {}),
        ("each", "one_row_short", PACKED | {"pad_rows": "forbidden"}),
        ("kept", "wrong_one_kept", TWO),
        ("added", "transposed", PAIR),
    ],
)
def test_wrong_ops_alone_are_accused(reference: str, wrong: str, how: dict[str, Any]) -> None:
    assert found(reference, reference, **how) == []
    assert found(reference, wrong, **how)


def test_padding_always_moves_a_row_of_a_sequence() -> None:
    """Else an op that leaves the padded offsets unread differs in nothing."""
    spec = OpSpec(
        name="padded",
        candidate=f"{__name__}:each",
        reference=f"{__name__}:each",
        inputs=(*PACKED["inputs"], Input("padded", kind="cu_seqlens_padded")),
        outputs=(Output("y"),),
        axes=SIZES,
        layouts=("thd",),
    )
    cases = [case for case in plan(spec, 300, 0) if any(case.gaps)]
    assert len(cases) > 20
    for case in cases:
        filled = [place for place, length in enumerate(case.lengths) if length]
        assert any(case.gaps[: filled[-1]]), dims(case)
