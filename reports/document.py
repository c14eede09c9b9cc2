"""A concluded run as one JSON document, from which every report is rendered.

The shape is published as ``docs/schema/report.schema.json``.  Nothing is decided here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from math import prod
from typing import Any

from ..given import given_json
from ..record import Record
from ..runs import Run, readable
from ..verdict import EXIT_CODES, Exit, Verdict
from .cost import cost_of
from .mutation import summary

SCHEMA_VERSION = 1
OUTCOMES = {
    Exit.OK: "no regression",
    Exit.REGRESSION: "regression",
    Exit.INTERRUPTED: "interrupted",
    Exit.NOTHING_COMPARED: "nothing compared",
    Exit.INCONCLUSIVE: "inconclusive",
}

Document = dict[str, Any]


def document_of(run: Run) -> Document:
    """The report of a run; raises ValueError where it has no result, or one of another version."""
    described, result = run.document("run"), run.document("result")
    if not result:
        raise ValueError(
            f"Expected result.json in {run.folder} but there is none: the run was killed, goes on, "
            "or was one of pytest; run `parity gate` to its end."
        )
    with readable(run):
        return _document(run, described, result)


def _document(run: Run, described: Document, result: Document) -> Document:
    records = _Records(run)
    exit_code = Exit(result["exit_code"])
    return {
        "schema_version": SCHEMA_VERSION,
        "run": result["run"],
        "outcome": OUTCOMES[exit_code],
        "exit_code": int(exit_code),
        "sentence": result["sentence"],
        "seed": described.get("seed"),
        "cases": result["cases"],
        "counts": result["counts"],
        "ops": result["ops"],
        "arms": result["arms"],
        "environment": run.document("environment"),
        "power": _power(result.get("power")),
        "known_issues": result.get("known_issues", []),
        "items": [_item(run, item, records) for item in result["items"]],
        "headroom": list(records.headroom()),
        "coverage": result.get("coverage", {}),
        "cost": cost_of(run, records.pairs(result["items"])),
    }


def _power(power: Document | None) -> Document | None:
    """What the cases of the gate noticed of bugs planted in the change, and each they did not."""
    if not power:
        return None
    fields = ("id", "class", "file", "line", "function", "original", "changed", "reason")
    alive = [mutant for mutant in power["mutants"] if mutant["status"] == "survived"]
    survivors = [{name: mutant[name] for name in fields} for mutant in alive]
    return {"sentence": summary(power), "survivors": survivors}


def _item(run: Run, item: Document, records: _Records) -> Document:
    case = item["minimal_case"]
    path = run.case_file(case)
    pictured = records.widest(item)
    return (
        {"known": ""}
        | item
        | {
            "id": _anchor(item),
            "exit_code": int(
                Exit.OK if item.get("known") else EXIT_CODES[Verdict(item["verdict"])]
            ),
            "case": given_json(path) if path.is_file() else None,
            "headroom": {
                tensor: [_finite(value) for value in pair]
                for tensor, pair in item["headroom"].items()
            },
            "pictured": pictured,
            "ulps": records.of_case(pictured, "ulps"),
            "maps": records.of_case(pictured, "maps"),
        }
    )


def _anchor(item: Document) -> str:
    """The same in every report that has this finding, so that links to it last."""
    text = json.dumps([item["op"], item["verdict"], item["family"]])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _finite(value: float) -> float | str:
    """A number, or what JSON has no number for."""
    return value if math.isfinite(value) else "infinite" if math.isinf(value) else "nan"


class _Records:
    """What the records of a run say about each tensor, and about each case."""

    def __init__(self, run: Run) -> None:
        self._cases: dict[str, dict[str, Record]] = {}
        self._largest: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}
        self._ulps: dict[tuple[str, str], dict[str, list[int]]] = {}
        for record in run.all_records():
            arms = self._cases.setdefault(record.case_id, {})
            if record.arm not in arms:
                arms[record.arm] = record
                self._add(record)

    def _add(self, record: Record) -> None:
        for tensor, share in record.headroom.items():
            found = self._largest.setdefault((record.op, tensor), {})
            if share >= found.get(record.arm, (0.0, ""))[0]:
                found[record.arm] = (share, record.case_id)
        for tensor, counts in record.ulps.items():
            arms = self._ulps.setdefault((record.op, tensor), {})
            arms[record.arm] = _sum(arms.get(record.arm, []), counts)

    def widest(self, item: Document) -> str:
        """The case of a finding whose map shows most; the smallest one where there is no map."""
        own = "".join(item["signature"].split(" | ")[1:2])
        sizes = [
            (prod(record.maps[own]["shape"]), case)
            for case in item["cases"]
            for record in self._cases.get(case, {}).values()
            if own in record.maps
        ]
        return max(sizes)[1] if sizes else str(item["minimal_case"])

    def pairs(self, items: list[Document]) -> Iterator[tuple[Record, Record]]:
        """Base's and head's record of every planned case that has both."""
        for case in dict.fromkeys(case for item in items for case in item["cases"]):
            arms = self._cases.get(case, {})
            if {"base", "head"} <= arms.keys():
                yield arms["base"], arms["head"]

    def of_case(self, case: str, field: str) -> Document:
        """``ulps`` or ``maps`` of one case: by tensor, then by arm."""
        found: Document = {}
        for arm, record in sorted(self._cases.get(case, {}).items()):
            for tensor, value in sorted(getattr(record, field).items()):
                found.setdefault(tensor, {})[arm] = value
        return found

    def headroom(self) -> Iterator[Document]:
        """For each op and tensor the largest share of its bound in each arm, with its case."""
        for (op, tensor), arms in sorted(self._largest.items()):
            ulps = self._ulps.get((op, tensor), {})
            yield {"op": op, "tensor": tensor} | {
                arm: {"share": _finite(share), "case": case, "ulps": ulps.get(arm, [])}
                for arm, (share, case) in sorted(arms.items())
            }


def _sum(a: list[int], b: list[int]) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [n + (shorter[i] if i < len(shorter) else 0) for i, n in enumerate(longer)]
