"""Generated code of base beside that of head: what is the same, what grew, what is a regression.

Pure: a row is the JSON object that ``parity codegen --json`` writes.  The regressions are those
that a reader would want to stop a merge for, whatever the timing on some GPU says today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import Any

from ..verdict import Exit
from .row import Row

_COMPARED = (
    "registers", "spills", "local_bytes", "shared_bytes", "load_widths", "store_widths",
    "barriers", "fma", "warps", "resident_warps",
)  # fmt: skip


class Change(StrEnum):
    """What the generated code of a launch says about a change."""

    IDENTICAL = "GENERATED_CODE_IDENTICAL"
    CHANGED = "CHANGED"
    REGRESSION = "REGRESSION"
    PRE_EXISTING = "PRE_EXISTING"  # it does not compile or does not launch in either arm
    FIXED = "FIXED"
    NEW = "NEW_CAPABILITY"  # base does not launch anything for this call


@dataclass(frozen=True)
class Pair:
    """One launch in both arms, or in one.

    ``reasons`` say why it is a regression, ``notes`` what else differs.
    """

    verdict: Change
    base: Row | None
    head: Row | None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def row(self) -> Row:
        """Head's row, or base's where head has none."""
        found = self.head if self.head is not None else self.base
        return {} if found is None else found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "verdict": str(self.verdict),
            "reasons": [*self.reasons],
            "notes": [*self.notes],
            "base": self.base,
            "head": self.head,
        }


def compare(base_rows: Iterable[Row], head_rows: Iterable[Row]) -> list[Pair]:
    """Pair the launches of two arms, call by call, and judge each pair."""
    base, head = _by_call(base_rows), _by_call(head_rows)
    calls = dict.fromkeys((*head, *base))
    return [pair for call in calls for pair in _call(base.get(call, []), head.get(call, []))]


def generated_code_identical(base_rows: Iterable[Row], head_rows: Iterable[Row]) -> bool:
    """Whether two arms compute the same by proof: same code, launched alike, nothing else done.

    True only if there are rows, all of them compiled, every call of one arm is one of the other,
    and of each launch the normalised PTX with its assembler options, the grid, every argument and
    the torch operations around it are equal.  Holds for the calls that the rows are about: pass
    the rows of one op to ask about that op.
    """
    base, head = _by_call(base_rows), _by_call(head_rows)
    proofs = [{call: _proof(rows) for call, rows in arm.items()} for arm in (base, head)]
    compiled = all(not row["error"] for rows in base.values() for row in rows)
    return bool(base) and compiled and proofs[0] == proofs[1]


def exit_code(pairs: Iterable[Pair]) -> Exit:
    """What a comparison says to the shell."""
    found = list(pairs)
    if any(pair.verdict is Change.REGRESSION for pair in found):
        return Exit.REGRESSION
    compared = any(pair.base is not None and pair.head is not None for pair in found)
    return Exit.OK if compared else Exit.NOTHING_COMPARED


def _by_call(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        call = (row["op"], row["case"], row["arch"])
        found.setdefault(call, []).append(row)
    return found


def _proof(rows: list[Row]) -> list[tuple[object, ...]]:
    return [(row["config"], row["code"], row["host"]) for row in rows]


def _call(base: list[Row], head: list[Row]) -> Iterator[Pair]:
    if not head:
        yield from (_lost(row) for row in base)
        return
    pairs, gone, added = _match(base, head)
    yield from (_judge(before, after) for before, after in pairs)
    yield from (_added(base, row) for row in added)
    yield from (_gone(row) for row in gone)


def _match(base: list[Row], head: list[Row]) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Pairs by kernel and order, then renamed kernels by order; what base and head have over."""
    pairs: list[tuple[Row, Row]] = []
    gone, added = list(base), []
    for row in head:
        same = next((item for item in gone if _named(item) == _named(row)), None)
        if same is None:
            added.append(row)
        else:
            gone.remove(same)
            pairs.append((same, row))
    renamed = list(zip(filter(_plain, gone), filter(_plain, added), strict=False))
    for before, after in renamed:
        gone.remove(before)
        added.remove(after)
    return pairs + renamed, gone, added


def _named(row: Row) -> tuple[str, str]:
    return row["kernel"], row["config"]


def _plain(row: Row) -> bool:
    """Whether a row is one launch, not a stop before one and not one configuration of several."""
    return row["launch"] is not None and not row["config"]


def _lost(row: Row) -> Pair:
    if row["error"]:
        return Pair(Change.FIXED, row, None, notes=("head refuses this call",))
    return Pair(Change.REGRESSION, row, None, reasons=("head launches nothing for this call",))


def _gone(row: Row) -> Pair:
    if row["error"]:
        return Pair(Change.FIXED, row, None, notes=(row["error"],))
    what = "configuration" if row["config"] else "launch"
    return Pair(Change.CHANGED, row, None, notes=(f"one {what} less",))


def _added(base: list[Row], row: Row) -> Pair:
    if row["error"] and base:
        return Pair(Change.REGRESSION, None, row, reasons=(row["error"],))
    if not base or any(item["error"] for item in base):
        return Pair(Change.NEW, None, row)  # base got no further, or nowhere
    if row["config"]:
        return Pair(Change.CHANGED, None, row, notes=("added configuration",))
    return Pair(Change.REGRESSION, None, row, reasons=("added launch",))


def _judge(base: Row, head: Row) -> Pair:
    if base["error"] or head["error"]:
        return _judge_errors(base, head)
    host = () if base["host"] == head["host"] else ("the call around it differs",)
    if base["code"] == head["code"]:
        return Pair(Change.IDENTICAL, base, head, notes=host)
    reasons = tuple(reason for rule in RULES if (reason := rule(base, head)))
    figures = [_figure(name, base, head) for name in _COMPARED if base[name] != head[name]]
    notes = (*(item for item in figures if not any(item in told for told in reasons)), *host)
    return Pair(Change.REGRESSION if reasons else Change.CHANGED, base, head, reasons, notes)


def _judge_errors(base: Row, head: Row) -> Pair:
    if not head["error"]:
        return Pair(Change.FIXED, base, head, notes=(base["error"],))
    if base["error"]:
        return Pair(Change.PRE_EXISTING, base, head, notes=(head["error"],))
    return Pair(Change.REGRESSION, base, head, reasons=(f"no longer compiles: {head['error']}",))


def _figure(name: str, base: Row, head: Row) -> str:
    return f"{name} {_shown(base[name])} -> {_shown(head[name])}"


def _shown(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "+".join(f"{number}x{bits}" for bits, number in value.items()) or "none"


def _new_spills(base: Row, head: Row) -> str:
    grew = head["spills"] > base["spills"]
    return f"new spills: {_figure('spills', base, head)} bytes" if grew else ""


def _added_barrier(base: Row, head: Row) -> str:
    grew = head["barriers"] > base["barriers"]
    return f"added barrier: {_figure('barriers', base, head)}" if grew else ""


def _occupancy_step(base: Row, head: Row) -> str:
    """Fewer warps fit because the kernel needs more; a smaller block by choice is not that."""
    grew = [name for name in ("registers", "shared_bytes") if head[name] > base[name]]
    if not grew or head["resident_warps"] >= base["resident_warps"]:
        return ""
    steps = ", ".join(_figure(name, base, head) for name in (*grew, "resident_warps"))
    return f"over an occupancy step: {steps}"


def _narrower_loads(base: Row, head: Row) -> str:
    return _narrower("load", base, head)


def _narrower_stores(base: Row, head: Row) -> str:
    return _narrower("store", base, head)


def _narrower(kind: str, base: Row, head: Row) -> str:
    """Bits that base moved in wide accesses and head moves in narrower ones.

    Both arms move the data of one call, so what the wide accesses lose the narrow ones gain, or
    half of it: Triton pads a tile to a power of two, at most twice its lanes, and the lanes that
    are masked off count here.  Accesses that are merely added or dropped are no loss.
    """
    before, after = _traffic(kind, base), _traffic(kind, head)
    for width in sorted(before, reverse=True):
        lost = _wide(before, width) - _wide(after, width)
        gained = (sum(after.values()) - _wide(after, width)) - (
            sum(before.values()) - _wide(before, width)
        )
        if lost > 0 and 2 * gained >= lost:
            return f"lost vector width: {_figure(f'{kind}_widths', base, head)}"
    return ""


def _traffic(kind: str, row: Row) -> dict[int, int]:
    """Bits moved by a launch in accesses of each width, loops counted once."""
    threads = 32 * row["warps"] * prod(row["grid"])
    widths: Mapping[str, int] = row[f"{kind}_widths"]
    return {int(bits): int(bits) * number * threads for bits, number in widths.items()}


def _wide(traffic: Mapping[int, int], width: int) -> int:
    return sum(moved for bits, moved in traffic.items() if bits >= width)


RULES: tuple[Callable[[Row, Row], str], ...] = (
    _new_spills,
    _narrower_loads,
    _narrower_stores,
    _added_barrier,
    _occupancy_step,
)
