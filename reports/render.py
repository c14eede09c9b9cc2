"""A run in each of the formats."""

from __future__ import annotations

import json
from collections.abc import Callable

from ..runs import Run, readable
from . import html, junit, markdown, terminal
from .document import Document, document_of


def _json(document: Document) -> str:
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Document], str]] = {
    "html": html.page,
    "markdown": markdown.comment,
    "summary": markdown.summary,
    "junit": junit.suites,
    "json": _json,
}


def as_text(run: Run, name: str) -> str:
    """The report of a concluded run in one of ``FORMATS``; ValueError where it has no result, or
    a file of another shape."""
    document = document_of(run)
    with readable(run):
        return FORMATS[name](document)


def to_terminal(run: Run) -> None:
    """Print what the gate printed in the end."""
    document = document_of(run)
    output = terminal.console()
    with readable(run):
        terminal.show_header(output, run.document("run"), document["environment"])
        terminal.show_result(output, run.document("result"), str(run.folder))
