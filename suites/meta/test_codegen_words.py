"""What the terminal says of generated code, on rows made by hand."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from parity.reports.codegen import show_idle, show_pairs, show_rows

ROW: dict[str, Any] = {
    "op": "concat",
    "kernel": "forward",
    "arch": "sm_90",
    "specialisation": "SBHD",
    "tile": "4",
    "error": "",
    "registers": 32,
    "spills": 0,
    "shared_bytes": 0,
    "load_bits": 128,
    "store_bits": 64,
    "barriers": 0,
    "fma": 0,
    "occupancy": 0.5,
}


def shown(show: Any, found: Any) -> list[str]:
    output = Console(file=io.StringIO(), width=200)
    show(output, found)
    text: str = output.file.getvalue()  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in text.splitlines()]


def pair(verdict: str, *reasons: str, base: Any = ROW, head: Any = ROW) -> dict[str, Any]:
    return {"verdict": verdict, "reasons": reasons, "notes": (), "base": base, "head": head}


def test_rows_are_told_as_ranges_and_errors_are_counted() -> None:
    wide = ROW | {"registers": 40, "occupancy": 0.75}
    wrong = ROW | {"error": "out of registers"}
    assert shown(show_rows, [ROW, wide, ROW | {"arch": "sm_100"}, wrong, wrong]) == [
        "op kernel arch launches registers spilled bytes shared bytes load bits store bits barriers"
        " fma occupancy",
        "concat forward sm_90 2 32 to 40 0 0 128 64 0 0 50 to 75 %",
        "concat forward sm_100 1 32 0 0 128 64 0 0 50 %",
        "concat forward sm_90: out of registers (2 calls)",
        "3 launches compiled, 2 failed.",
    ]


def test_pairs_are_told_by_verdict_and_by_kind_of_difference() -> None:
    pairs = [
        pair("GENERATED_CODE_IDENTICAL"),
        pair("REGRESSION", "8 bytes spilled", "more registers"),
        pair("REGRESSION", "8 bytes spilled", "more registers"),
        pair("FIXED", "compiles now", base=ROW | {"error": "no"}, head=None),
    ]
    assert shown(show_pairs, pairs) == [
        "op arch verdict launches",
        "concat sm_90 GENERATED_CODE_IDENTICAL 1",
        "concat sm_90 REGRESSION 2",
        "concat sm_90 FIXED 1",
        "",
        "REGRESSION concat forward, 2 launches",
        "8 bytes spilled; more registers",
        "first: sm_90 SBHD 4",
        "",
        "FIXED concat forward, 1 launch",
        "compiles now",
        "first: sm_90 SBHD 4",
        "",
        "Generated code: FIXED 1, GENERATED_CODE_IDENTICAL 1, REGRESSION 2.",
    ]
    assert shown(show_pairs, [])[-1] == "Generated code: nothing compared."


def test_calls_without_a_launch_are_not_run() -> None:
    assert shown(show_idle, {"base": 0, "head": 1}) == ["NOT_RUN in head: 1 call without a launch."]
