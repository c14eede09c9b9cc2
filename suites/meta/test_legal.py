"""Every sentence of why a contract forbids a case, each on a legal case with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parity.case import Case
from parity.catalog import resolve
from parity.generate import is_legal, plan

SPEC = resolve("parity")["fused_mla_rope_concat"]


def planned(layout: str) -> Case:
    """A legal case; a packed one is of the second of two ranks, whose lengths four must divide."""
    case = next(
        case
        for case in plan(SPEC, 0, 0)
        if case.layout == layout and (layout == "sbhd" or case.cp_size == 2)
    )
    packed = {"lengths": (8, 4), "gaps": (0, 4), "tail": 0, "cp_rank": 1}
    return replace(case, **packed if layout == "thd" else {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "change", "sentence"),
    [
        ("sbhd", {}, ""),
        ("thd", {}, ""),
        ("thd", {"op": "another"}, "Expected a case of op 'fused_mla_rope_concat' but got one of"),
        ("thd", {"layout": "plain"}, "Expected a layout among ('sbhd', 'thd') but got 'plain'."),
        ("thd", {"axes": {"heads": 1}}, "Expected the axes of op 'fused_mla_rope_concat' in thd"),
        ("thd", {"dtype": "int8"}, "Expected dtype in"),
        ("sbhd", {"lengths": (1,)}, "Expected no packing outside thd."),
        ("sbhd", {"tail": 1}, "Expected tail in False but got True."),
        ("thd", {"gaps": (0,)}, "Expected one gap for each of at least one sequence."),
        ("thd", {"lengths": (), "gaps": ()}, "Expected one gap for each of at least one sequence."),
        ("thd", {"lengths": (8, 2)}, "Expected lengths divisible by 2*cp_size but got (8, 2) and"),
        ("thd", {"gaps": (0, 2)}, "Expected lengths divisible by 2*cp_size but got (8, 4) and"),
        ("thd", {"cp_rank": 2}, "Expected cp_rank below cp_size but got 2 of 2."),
        ("thd", {"lengths": (0, 0)}, "Expected at least one token."),
    ],
)
def test_why_a_case_is_not_legal(layout: str, change: dict[str, Any], sentence: str) -> None:
    found = is_legal(SPEC, replace(planned(layout), **change))
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)
