"""Markdown for GitHub: a comment on a pull request, or a job summary.

Text of others stands in ``<code>`` with every punctuation mark as an entity: neither Markdown nor
a link nor a mention can begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..verdict import Exit
from .document import Document
from .plain import plain
from .terminal import WITHOUT_SENTENCE, revision

COMMENT = 65_536  # characters of a comment; UTF-8 bytes are never fewer
SUMMARY = 2**20  # bytes of the summary of one step
LONGEST = 1_000  # characters of one text of others
MARKS = {Exit.OK: "✅", Exit.REGRESSION: "❌"}
HARMLESS = " ,;()%'"  # punctuation with which nothing begins in Markdown or on GitHub
ROOM_AT_END = 400  # for the sentences that say what was cut


def comment(document: Document) -> str:
    """At most as long as GitHub allows for a comment."""
    return _rendered(document, COMMENT)


def summary(document: Document) -> str:
    """At most as long as GitHub allows for a job summary."""
    return _rendered(document, SUMMARY)


def _rendered(report: Document, limit: int) -> str:
    mark = MARKS.get(report["exit_code"], "⚠️")
    text = f"## {mark} Parity: {report['outcome']}\n\n{_text(report['sentence'])}\n\n"
    text += "".join(_arms(report))
    rows = [(op, *count) for op, counts in report["ops"].items() for count in counts.items()]
    taken = _fitting(map(_row, rows), limit // 2 - len(text.encode()))
    text += "| op | verdict | cases |\n|---|---|---:|\n" + "".join(taken) if taken else ""
    text += _cut(len(rows) - len(taken), "rows of this table") + "\n"
    items = [item for item in report["items"] if item["verdict"] not in WITHOUT_SENTENCE]
    taken = _fitting(map(_details, items), limit - len(text.encode()) - ROOM_AT_END)
    text += "".join(taken) + _cut(len(items) - len(taken), "findings")
    return text + f"Everything: {_code('parity report ' + report['run'] + ' --html report.html')}\n"


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
    return f"\n{number} more {what} did not fit into what GitHub allows.\n\n" if number else ""


def _arms(report: Document) -> Iterator[str]:
    yield "| arm | revision |\n|---|---|\n"
    for name, arm in report["arms"].items():
        yield f"| {_text(name)} | {_code(revision(arm))} |\n"
    environment = report["environment"]
    told = [f"{environment.get('tier', 'unknown')} tier"]
    told += [f"{name} {v}" for name, v in sorted(environment.get("versions", {}).items())]
    yield f"\n{_text(', '.join(told))}\n\n"


def _row(row: tuple[str, str, int]) -> str:
    op, verdict, cases = row
    return f"| {_code(op)} | {_text(verdict)} | {cases} |\n"


def _details(item: Document) -> str:
    number = len(item["cases"])
    title = f"<b>{_text(item['verdict'])}</b> {_code(item['op'])}, {number} "
    lines = [
        f"<details><summary>{title}{'case' if number == 1 else 'cases'}</summary>\n",
        f"{_code(item['sentence'])}\n",
        *([f"Signature: {_code(item['signature'])}\n"] if item["signature"] else []),
        *([f"Known issue: {_code(item['known'])}\n"] if item.get("known") else []),
        *([f"Evidence in base: case {_code(item['evidence'])}\n"] if item["evidence"] else []),
        *_headroom(item["headroom"]),
        f"Smallest case: {_code(item['minimal_summary'])}\n",
        f"Replay: {_code(item['replay'])}\n",
        "</details>\n\n",
    ]
    return "\n".join(lines)


def _headroom(changes: Document) -> Iterator[str]:
    for tensor, (before, after) in sorted(changes.items()):
        shares = " before, ".join(_share(share) for share in (before, after))
        yield f"{_code(tensor)}: share of the bound used {shares} now\n"


def _share(share: float | str) -> str:
    return share if isinstance(share, str) else f"{share:.3g}"


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>" if text else ""


def _text(text: str) -> str:
    """Text of others; a zero-width space ends what ``@`` could begin."""
    more = len(text) - LONGEST
    cut = f"{text[:LONGEST]} … {more} more characters" if more > 0 else text
    return "".join(map(_entity, plain(cut))).replace("&#64;", "&#64;&#8203;")


def _entity(character: str) -> str:
    if character.isalnum() or character in HARMLESS or ord(character) > 127:
        return character
    return f"&#{ord(character)};"
