"""Generated code on the terminal: a table of figures, or what differs between base and head.

Everything comes from the rows and pairs of ``parity codegen``; nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .plain import plain

Row = dict[str, Any]
_COLUMNS = (
    "op", "kernel", "arch", "launches", "registers", "spilled bytes", "shared bytes",
    "load bits", "store bits", "barriers", "fma", "occupancy",
)  # fmt: skip
_FIGURES = (
    "registers", "spills", "shared_bytes", "load_bits", "store_bits", "barriers", "fma",
)  # fmt: skip


def show_rows(output: Console, rows: Sequence[Row]) -> None:
    """One line for each kernel and architecture with the range of its figures, then errors."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if not row["error"]:
            groups.setdefault((row["op"], row["kernel"], row["arch"]), []).append(row)
    table = _table(_COLUMNS)
    for names, group in groups.items():
        ranges = [_range([row[name] for row in group]) for name in _FIGURES]
        occupancy = _range([round(100 * row["occupancy"]) for row in group]) + " %"
        _add(table, *names, len(group), *ranges, occupancy)
    output.print(table)
    for line, number in _errors(rows).items():
        _line(output, f"{line} ({_times(number, 'call')})", "red")
    failed = sum(bool(row["error"]) for row in rows)
    _line(output, f"{len(rows) - failed} launches compiled, {failed} failed.", "bold")


def show_pairs(output: Console, pairs: Sequence[dict[str, Any]]) -> None:
    """Verdicts by op and architecture, then every kind of difference with its first example."""
    counts: Counter[tuple[str, str, str]] = Counter()
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for pair in pairs:
        row = pair["head"] or pair["base"]
        counts[(row["op"], row["arch"], pair["verdict"])] += 1
        if pair["reasons"] or pair["notes"]:
            told = "; ".join((*pair["reasons"], *pair["notes"]))
            groups.setdefault((pair["verdict"], row["op"], row["kernel"], told), []).append(pair)
    table = _table(("op", "arch", "verdict", "launches"))
    for names, number in counts.items():
        _add(table, *names, number)
    output.print(table)
    for (verdict, op, kernel, told), group in groups.items():
        row = group[0]["head"] or group[0]["base"]
        where = f"{row['arch']} {row['specialisation']} {row['tile']}"
        _line(output)
        _line(output, f"{verdict} {op} {kernel}, {_times(len(group), 'launch')}", _style(verdict))
        _line(output, f"  {told}")
        _line(output, f"  first: {where}")
    total = Counter(pair["verdict"] for pair in pairs)
    listed = ", ".join(f"{verdict} {number}" for verdict, number in sorted(total.items()))
    _line(output)
    _line(output, f"Generated code: {listed or 'nothing compared'}.", "bold")


def show_idle(output: Console, idle: dict[str, int]) -> None:
    """How many calls an arm does not support, or answers without a Triton kernel."""
    for arm, number in idle.items():
        if number:
            _line(output, f"NOT_RUN in {arm}: {_times(number, 'call')} without a launch.", "yellow")


def _errors(rows: Iterable[Row]) -> Counter[str]:
    return Counter(
        f"{row['op']} {row['kernel']} {row['arch']}: {row['error']}" for row in rows if row["error"]
    )


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, no_wrap=True, justify="left" if index < 3 else "right")
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text(plain(cell)) for cell in cells))


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _times(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("h") else "s")
    return f"{number} {what if number == 1 else plural}"


def _style(verdict: str) -> str:
    if verdict == "REGRESSION":
        return "bold red"
    return "green" if verdict in ("GENERATED_CODE_IDENTICAL", "FIXED") else "yellow"


def _line(output: Console, text: str = "", style: str = "") -> None:
    output.print(Text(plain(text), style), soft_wrap=True)
