"""Prints the table of scores in docs/mutation.md, from the results of two runs.

``python -m suites.meta.mutant_table ours.json usual.json``: what all of the project notices, and
beside it, of the mutants that both runs have, what a hand-written suite does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parity.mutation.mutants import FAULTS

# What none of our functions has a place for, or hardly one, is planted in suites/meta/catalogue.
PLANTED = {
    "barrier_removed": (
        "converts_without_a_barrier", "reads_its_partner_without_a_barrier",
        "reloads_without_a_barrier",
    ),
    "contiguous_dropped": ("never_calls_is_contiguous", "ignores_strides"),
    "restore_value_removed": ("rotates_while_it_tunes", "zeroes_what_it_restores"),
}  # fmt: skip
HEAD = """\
| class | judged by both | noticed here | by the hand-written suite | judged here alone \
| noticed here | planted in the catalogue |
|---|---:|---:|---:|---:|---:|---|
"""
Row = dict[str, Any]


def table(ours: dict[str, Any], usual: dict[str, Any]) -> str:
    """Markdown: a line for each class and one for all, equivalent mutants left out."""
    by_suite = {row["id"]: row for row in usual["mutants"]}
    real = [row for row in ours["mutants"] if row["status"] != "equivalent"]
    kernels = [row for row in real if row["id"] in by_suite]
    others = [row for row in real if row["id"] not in by_suite]

    def line(title: str, names: Iterable[str], planted: str) -> str:
        classes = set(names)
        here, there = ([r for r in rows if r["class"] in classes] for rows in (kernels, others))
        judged = [by_suite[row["id"]] for row in here]
        cells = (title, len(here), _noticed(here), _noticed(judged), len(there), _noticed(there))
        return f"| {' | '.join(map(str, cells))} | {planted} |\n"

    lines = [
        line(f"`{name}`", [name], ", ".join(f"`{bug}`" for bug in PLANTED.get(name, ())))
        for name in FAULTS
    ]
    return "".join([HEAD, *lines, line("all", FAULTS, "")])


def _noticed(rows: list[Row]) -> str:
    if not rows:
        return ""
    noticed = sum(row["status"] in ("killed", "timeout") for row in rows)
    return f"{noticed} ({100 * noticed / len(rows):.1f} %)"


def main() -> None:
    """Print the table of the two results that the command line names."""
    ours, usual = (json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:3])
    print(table(ours, usual), end="")  # noqa: T201 - the terminal is the output


if __name__ == "__main__":
    main()
