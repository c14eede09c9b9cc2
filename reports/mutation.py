"""The result of ``parity mutate`` on the terminal: scores by class, then every survivor.

`parity gate --power` shows the survivors too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from .plain import plain

LOOK = (
    "To look at one, make its change there and run `parity gate`: add the case, axis or test that "
    "shows it, or give the reason why none can in suites/equivalent_mutants.toml."
)
STATUSES = ("killed", "survived", "timeout", "equivalent")


def show(output: Console, document: dict[str, Any]) -> None:
    """Print the document that ``--json`` writes."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("class", no_wrap=True)
    for name in (*STATUSES, "score"):
        table.add_column(name, justify="right")
    for name, found in document["classes"].items():
        table.add_row(name, *(str(found[status]) for status in STATUSES), _percent(found["score"]))
    output.print(table)
    for line in survivors(document):
        output.print(line, markup=False, soft_wrap=True)
    output.print(f"\n{summary(document)}", markup=False, soft_wrap=True)
    if document["left"]:
        left = f"Interrupted; {document['left']} mutants are left, the same command goes on."
        output.print(left, markup=False, soft_wrap=True)


def survivors(document: dict[str, Any]) -> Iterator[str]:
    """Three lines for each mutant that lived, behind an empty one: where, from, to; then, if any
    did, how to look at one."""
    alive = [mutant for mutant in document["mutants"] if mutant["status"] == "survived"]
    for mutant in alive:
        place = f"{mutant['file']}:{mutant['line']} {mutant['function']}"
        reason = f" ({mutant['reason']})" if mutant["reason"] else ""
        told = f"SURVIVED {mutant['id']} {mutant['class']} in {place}{reason}"
        yield from ("", *map(plain, (told, f"  {mutant['original']}", f"  {mutant['changed']}")))
    if alive:
        yield from ("", LOOK)


def summary(document: dict[str, Any]) -> str:
    """Counts, score and time in one line."""
    found = ", ".join(f"{document['counts'][status]} {status}" for status in STATUSES)
    seconds = document["median_seconds_to_first_failure"]
    median = "" if seconds is None else f"; median {seconds:.2f} s from start to first failing case"
    return f"{found}: score {_percent(document['score'])}{median}."


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.1f} %"
