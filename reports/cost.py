"""What base and head cost: generated code, time, and what the gate itself measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ..cost import WORDS
from ..record import Record
from ..runs import Run

# Figure of `parity codegen` and its name for people.
CODE = {
    "registers": "registers",
    "spills": "spilled bytes",
    "shared_bytes": "shared bytes",
    "load_bits": "widest load, bits",
    "store_bits": "widest store, bits",
    "barriers": "barriers",
}

Row = dict[str, Any]


def cost_of(run: Run, pairs: Iterable[tuple[Record, Record]]) -> list[Row]:
    """Rows of ``op``, ``place`` (kernel or workload), ``figure``, ``base`` and ``head``, each a
    ``[low, high]`` or null.

    They come from the records of base and head, and from ``codegen.json``, ``bench.json`` and
    ``bench-base.json`` in the folder of the run, as ``--json`` of those commands writes them.
    """
    code, head, base = (run.document(name) for name in ("codegen", "bench", "bench-base"))
    rows = list(_counted(pairs))
    rows += _code(code.get("base_rows", []), code.get("rows", []))
    rows += _times(base.get("rows", []), head.get("rows", []))
    return rows


def _counted(pairs: Iterable[tuple[Record, Record]]) -> Iterator[Row]:
    """What the gate counted, summed over the cases in which both arms have the count."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    for pair in pairs:
        base, head = map(_figures, pair)
        for name in base.keys() & head.keys():
            total = totals.setdefault((pair[0].op, name), Counter())
            total.update({"cases": 1, "base": base[name], "head": head[name]})
    for (op, name), total in sorted(totals.items()):
        sums = {arm: [total[arm]] * 2 for arm in ("base", "head")}
        cases = "1 case" if total["cases"] == 1 else f"{total['cases']} cases"
        yield {"op": op, "place": f"sum over {cases}", "figure": name} | sums


def _figures(record: Record) -> dict[str, int]:
    """The counts of one case, by their names for people."""
    named = {tuple(name.split()): count for name, count in record.cost.items()}
    counts = {f"{WORDS.get(what, what)} in {phase}": n for (phase, what), n in named.items()}
    for what in ("loaded", "stored") if record.traffic else ():
        counts[f"bytes {what}"] = sum(moved[what] for moved in record.traffic.values())
    return counts


def _code(base: Iterable[Row], head: Iterable[Row]) -> Iterator[Row]:
    """The range of every figure over the launches of a kernel on one architecture."""
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for arm, rows in (("base", base), ("head", head)):
        for row in rows:
            if not row["error"]:
                place = f"{row['kernel']} on {row['arch']}"
                groups.setdefault((row["op"], place), {}).setdefault(arm, []).append(row)
    for (op, place), arms in sorted(groups.items()):
        for name, figure in CODE.items():
            yield _row(op, place, figure, arms, name)


def _times(base: Iterable[Row], head: Iterable[Row]) -> Iterator[Row]:
    """Times of one revision a file, or of two that `parity bench --base` timed in turn."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for arm, rows in (("base", base), ("head", head)):
        for row in rows:
            if "task" in row:
                both = {name: [row[name]] * 2 for name in ("base", "head")}
                yield {"op": "", "place": row["task"], "figure": "microseconds"} | both
                continue
            place = f"{row['workload']} {row['passing']}"
            groups.setdefault(place, {}).setdefault(arm, []).append(row)
    for place, arms in groups.items():
        yield _row("", place, "microseconds", arms, "microseconds")
        yield _row("", place, "time over that of a copy", arms, "ratio")


def _row(op: str, place: str, figure: str, arms: dict[str, list[Row]], name: str) -> Row:
    found = {arm: [row[name] for row in rows] for arm, rows in arms.items()}
    ranges = {
        arm: [min(found[arm]), max(found[arm])] if found.get(arm) else None
        for arm in ("base", "head")
    }
    return {"op": op, "place": place, "figure": figure} | ranges
