"""Rows of triage as Markdown that can be pasted into a pull request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ..reports.entities import code_of
from ..reports.plain import plain
from ..verdict import Exit
from .cause import EXIT_CODES, Cause, Row, counts, exit_code
from .results import Results

# A comment on GitHub may have 65536 characters; the most urgent rows come first.
ROWS, CAUSES = 45_000, 15_000  # characters
WORDS = 200  # characters of one id: generated parameters can be of any length


def markdown(base: Results, head: Results, rows: Sequence[Row]) -> str:
    """The sentence, the totals, every row, and every cause that a row refers to by number."""
    causes = {row.signature: 0 for row in rows if row.signature}
    causes = {signature: number for number, signature in enumerate(causes, 1)}
    parts = [f"**{sentence(head, rows)}**", _totals(base, head), _verdicts(rows)]
    if rows:
        parts.append(
            _within(ROWS, "| {} more rows, in the file of `--json` | | |", _table(rows, causes))
        )
    if causes:
        parts.append(_within(CAUSES, "\n{} more causes.", _causes(base, head, causes)))
    return "\n\n".join(part for part in parts if part)


def sentence(head: Results, rows: Sequence[Row]) -> str:
    """How it ended, in one line."""
    failing = sum(outcome.status == "failed" for outcome in head.values())
    told = counts(rows)
    worse = told[Cause.REGRESSION] + told.get(Cause.COLLECTION_ERROR, 0)
    doubts = sum(EXIT_CODES[row.verdict] == Exit.INCONCLUSIVE for row in rows)
    caused = f"none of {failing} {_plural(failing, 'failure')} is caused by this change"
    return {
        Exit.OK: f"No regression: {caused if failing else 'no test fails with this change'}.",
        Exit.REGRESSION: f"Regression: {worse} {_plural(worse, 'failure')} caused by this change, "
        f"which has {failing} in all.",
        Exit.NOTHING_COMPARED: "Nothing compared: an arm ran no test.",
        Exit.INCONCLUSIVE: f"Inconclusive: {doubts} {_plural(doubts, 'result')} cannot be "
        "compared, and no failure is known to be caused by this change.",
    }[exit_code(rows)]


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _totals(base: Results, head: Results) -> str:
    lines = ["| | Base | This change |", "|---|---:|---:|"]
    before, after = (Counter(o.status for o in arm.values()) for arm in (base, head))
    for status in ("passed", "failed", "skipped", "not_run"):
        if before[status] or after[status] or status in ("passed", "failed"):
            lines.append(f"| {_word(status)} | {before[status]} | {after[status]} |")
    return "\n".join(lines)


def _verdicts(rows: Sequence[Row]) -> str:
    return ", ".join(f"{verdict} {count}" for verdict, count in counts(rows).items())


def _table(rows: Sequence[Row], causes: dict[str, int]) -> Iterator[str]:
    yield "| Test | Base | This change |"
    yield "|---|---|---|"
    for row in rows:
        cause = f" [{causes[row.signature]}]" if row.signature else ""
        only_base = row.verdict in (Cause.FIXED, Cause.REMOVED)
        before = f"{_word(row.base)}{cause if only_base else ''}"
        after = f"{_word(row.head)}{'' if only_base else cause}"
        shown = "" if row.evidence in ("", row.id) else f" ({cell(row.evidence)})"
        told = f"**{row.verdict}**: {text(row.reason)}{shown}"
        yield f"| {cell(row.id)} | {before} | {after}, {told} |"


def _causes(base: Results, head: Results, causes: dict[str, int]) -> Iterator[str]:
    before, after = (
        Counter(failure.signature for outcome in arm.values() for failure in outcome.failures)
        for arm in (base, head)
    )
    for signature, number in causes.items():
        told = f"{before[signature]} on base, {after[signature]} on this change"
        yield f"{number}. {code(signature)} ({told})"


def _within(budget: int, rest: str, lines: Iterator[str]) -> str:
    """As many lines as fit, and how many did not."""
    kept: list[str] = []
    left = 0
    for line in lines:
        budget -= len(line) + 1
        if budget < 0:
            left += 1
        else:
            kept.append(line)
    return "\n".join([*kept, rest.format(left)] if left else kept)


def _word(status: str) -> str:
    return status.replace("_", " ") or "no tests"


def cell(words: str) -> str:
    """Words of others as a code span inside a table, where a bar needs a mark even so."""
    short = words if len(words) <= WORDS else f"{words[:WORDS]}..."
    if "\\|" in short:  # a mark before that bar would itself be marked, and the cell would end
        return code_of(short)
    return code(short).replace("|", "\\|")


def code(words: str) -> str:
    """Words of others as a code span: nothing in it is markup."""
    shown = plain(words)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def text(words: str) -> str:
    """Words of ours, which may hold an id of others, outside of a code span."""
    marked = re.sub(r"([\\`*_\[\]<>|~#@])", r"\\\1", plain(words))
    return marked.replace("@", "@&#8203;")  # a mark alone does not keep GitHub from mentioning
