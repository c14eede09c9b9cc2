"""Markdown for GitHub: a comment on a pull request, or a job summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..verdict import Exit
from .document import Document
from .entities import code_of, text_of
from .terminal import WITHOUT_SENTENCE, entry_state, revision

COMMENT = 65_000  # bytes; GitHub takes 65,536 characters, and a workflow adds a mark of its own
SUMMARY = 2**20  # bytes of the summary of one step
MARKS = {Exit.OK: "✅", Exit.REGRESSION: "❌"}
KNOWN_ISSUES = 5  # that stand in the open
ROOM_AT_END = 400  # for the sentences that say what was cut


def comment(document: Document) -> str:
    """At most as long as GitHub allows for a comment."""
    return _rendered(document, COMMENT)


def summary(document: Document) -> str:
    """At most as long as GitHub allows for a job summary."""
    return _rendered(document, SUMMARY)


def _rendered(report: Document, limit: int) -> str:
    mark = MARKS.get(report["exit_code"], "⚠️")
    text = f"## {mark} Parity: {report['outcome']}\n\n{text_of(report['sentence'])}\n\n"
    text += "".join(_arms(report))
    if report["power"]:
        alive = report["power"]["survivors"]
        text += f"Power: {text_of(report['power']['sentence'])}\n\n"
        lived = _fitting(map(_survivor, alive), limit // 4)
        text += "".join(lived) + _cut(len(alive) - len(lived), "planted bugs that no case noticed")
    text += "".join(map(_known_issue, report["known_issues"][:KNOWN_ISSUES]))
    text += _cut(len(report["known_issues"]) - KNOWN_ISSUES, "known issues")
    rows = [(op, *count) for op, counts in report["ops"].items() for count in counts.items()]
    taken = _fitting(map(_row, rows), limit // 2 - len(text.encode()))
    text += "| op | verdict | cases |\n|---|---|---:|\n" + "".join(taken) if taken else ""
    text += _cut(len(rows) - len(taken), "rows of this table") + "\n"
    items = [item for item in report["items"] if item["verdict"] not in WITHOUT_SENTENCE]
    taken = _fitting(map(_details, items), limit - len(text.encode()) - ROOM_AT_END)
    text += "".join(taken) + _cut(len(items) - len(taken), "findings")
    return (
        text + f"Everything: {code_of('parity report ' + report['run'] + ' --html report.html')}\n"
    )


def _fitting(pieces: Iterable[str], room: int) -> list[str]:
    """The first pieces, as many as there is room for (bytes of UTF-8)."""
    taken: list[str] = []
    for piece in pieces:
        room -= len(piece.encode())
        if room < 0:
            break
        taken.append(piece)
    return taken


def _cut(number: int, what: str) -> str:
    return f"\n{number} more {what} did not fit into what GitHub allows.\n\n" if number > 0 else ""


def _arms(report: Document) -> Iterator[str]:
    yield "| arm | revision |\n|---|---|\n"
    for name, arm in report["arms"].items():
        yield f"| {text_of(name)} | {code_of(revision(arm))} |\n"
    environment = report["environment"]
    told = [f"{environment.get('tier', 'unknown')} tier"]
    told += [f"{name} {v}" for name, v in sorted(environment.get("versions", {}).items())]
    yield f"\n{text_of(', '.join(told))}\n\n"


def _known_issue(entry: Document) -> str:
    what = f"{code_of(entry['op'])}, {code_of(entry['signature'])}"
    return f"Known issue, {text_of(entry_state(entry))}: {what}: {text_of(entry['reason'])}\n\n"


def _survivor(mutant: Document) -> str:
    place = f"{mutant['file']}:{mutant['line']} {mutant['function']}"
    change = f"{code_of(mutant['original'])} became {code_of(mutant['changed'])}"
    reason = f" ({text_of(mutant['reason'])})" if mutant["reason"] else ""
    return f"No case noticed {text_of(mutant['class'])} in {code_of(place)}: {change}{reason}\n\n"


def _row(row: tuple[str, str, int]) -> str:
    op, verdict, cases = row
    return f"| {code_of(op)} | {text_of(verdict)} | {cases} |\n"


def _details(item: Document) -> str:
    number = len(item["cases"])
    title = f"<b>{text_of(item['verdict'])}</b> {code_of(item['op'])}, {number} "
    lines = [
        f"<details><summary>{title}{'case' if number == 1 else 'cases'}</summary>\n",
        f"{code_of(item['sentence'])}\n",
        *([f"Signature: {code_of(item['signature'])}\n"] if item["signature"] else []),
        *([f"Known issue: {code_of(item['known'])}\n"] if item.get("known") else []),
        *([f"Evidence in base: case {code_of(item['evidence'])}\n"] if item["evidence"] else []),
        *_headroom(item["headroom"]),
        f"Smallest case: {code_of(item['minimal_summary'])}\n",
        f"Replay: {code_of(item['replay'])}\n",
        "</details>\n\n",
    ]
    return "\n".join(lines)


def _headroom(changes: Document) -> Iterator[str]:
    for tensor, (before, after) in sorted(changes.items()):
        shares = " before, ".join(_share(share) for share in (before, after))
        yield f"{code_of(tensor)}: share of the bound used {shares} now\n"


def _share(share: float | str) -> str:
    return share if isinstance(share, str) else f"{share:.3g}"
