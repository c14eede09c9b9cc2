"""Positions that the tables do not have: what reads its way out of it is seen, in every lane."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nan

from parity.behaviour import chosen
from parity.catalog import find
from parity.generate import plan
from parity.kernels.out_of_place import fused_mla_rope_out_of_place
from parity.runner import run_case

SPEC = find("fused_mla_rope_out_of_place", "parity")
CASES = [case for case in plan(SPEC, 0, 0) if chosen(SPEC, case) == "positions_outside"]


def clamps(cos: Tensor, position_ids: Tensor | None = None, **rest: Any) -> Tensor:
    """A position outside takes the nearest row there is."""
    if position_ids is not None:
        position_ids = position_ids.clamp(0, len(cos) - 1)
    return fused_mla_rope_out_of_place(cos=cos, position_ids=position_ids, **rest)


def reads_on(cos: Tensor, sin: Tensor, position_ids: Tensor | None = None, **rest: Any) -> Tensor:
    """A row past the tables is read, if there is memory."""
    rows = 1 if position_ids is None else int(position_ids.max()) + 1
    cos, sin = (t.as_strided((max(rows, len(t)), *t.shape[1:]), t.stride()) for t in (cos, sin))
    return fused_mla_rope_out_of_place(cos=cos, sin=sin, position_ids=position_ids, **rest)


def wipes(cos: Tensor, position_ids: Tensor | None = None, **rest: Any) -> Tensor:
    """NaN in all lanes of the row, those too that are only copied."""
    y = fused_mla_rope_out_of_place(cos=cos, position_ids=position_ids, **rest)
    if position_ids is None:
        return y
    outside = (position_ids < 0) | (position_ids >= len(cos))
    return y.masked_fill(outside[:, None, None], nan)


@pytest.mark.parametrize("bug", [clamps, reads_on, wipes])
def test_a_planted_bug_is_found_and_nothing_else_is(bug: Any) -> None:
    spec = replace(SPEC, candidate=f"{__name__}:{bug.__name__}")
    case = next(case for case in CASES if case.axes["nope_dim"])
    record = run_case(spec, case)
    assert {finding.check for finding in record.findings} == {"effect:positions_outside"}


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: case.id)
def test_the_honest_op_passes(case: Any) -> None:
    record = run_case(SPEC, case)
    assert record.findings == ()
    assert "effect:positions_outside" in record.checks


def test_an_op_that_promises_nothing_is_not_asked() -> None:
    silent = replace(SPEC, outside="unspecified")
    assert all(chosen(silent, case) != "positions_outside" for case in CASES)
