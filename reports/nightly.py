"""A night beside the nights before it, on the terminal and as Markdown.

Everything comes from ``nightly.json``; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from parity.triage.table import cell, code, text

from .plain import plain
from .terminal import TIERS

_STYLES = {"NEW": "bold red", "SPREADING": "bold red", "FIXED": "green", "KNOWN": "dim"}
_COMMITS = 10  # shown of a stretch


def show(output: Console, result: dict[str, Any]) -> None:
    """The report on the terminal, the sentence last."""

    def line(words: str, style: str = "") -> None:
        output.print(Text(plain(words), style), soft_wrap=True)

    for words in _about(result):
        line(words)
    for item in result["failures"]:
        line("")
        line(_title(item), _STYLES.get(item["change"], "yellow"))
        for words in _details(item):
            line(f"  {words}")
    for item in result["drifts"]:
        line("")
        line(f"DRIFT {_drift(item)}", "dim" if item["known"] else "bold red")
        for words in stretch(item["since"]):
            line(f"  {words}")
    line("")
    for words in _not_run(result):
        line(words, "yellow")
    line(result["sentence"], "bold")


def markdown(result: dict[str, Any]) -> str:
    """The report as Markdown; names and messages of others are code spans."""
    parts = [f"**{text(result['sentence'])}**", _list(map(text, _about(result)))]
    if result["failures"]:
        parts.append("\n".join(_rows(result["failures"])))
    for item in result["failures"]:
        if item["since"] and item["change"] != "KNOWN":
            title = f"{item['change']} {code(item['id'])}"
            parts.append(f"{title}\n\n{_list(map(code, stretch(item['since'])))}")
    for item in result["drifts"]:
        parts.append(f"DRIFT {code(_drift(item))}\n\n{_list(map(code, stretch(item['since'])))}")
    parts.append(_list(map(code, _not_run(result))))
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Iterator[str] | map[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _rows(failures: list[dict[str, Any]]) -> Iterator[str]:
    yield "| | Failure | Cases | Nights | What |"
    yield "|---|---|---:|---|---|"
    for item in failures:
        signature = cell(f"{item['op']}: {item['signature']}")
        nights, sentence = cell(item["shown"]), cell(item["sentence"])
        yield f"| {item['change']} | {signature} | {item['cases']} | {nights} | {sentence} |"


def _about(result: dict[str, Any]) -> Iterator[str]:
    night = result["night"]
    yield f"Tier: {TIERS.get(night['tier'], night['tier'])} ({night['versions']})"
    yield f"Commit: {night['commit']}"
    green, compared = result["last_green"], result["compared_with"]
    if green:
        yield f"Last green night: {green['last']} at {green['last_commit'][:12]}, {_count(green)}."
    else:
        yield "No earlier night of this machine is green."
    count = f"{len(compared)} {'night' if len(compared) == 1 else 'nights'}"
    yield f"Compared with {count}: {', '.join(compared) or 'none'}."
    if result["other_cases"]:
        ops = ", ".join(result["other_cases"])
        yield f"Numbers begin anew, since the fixed cases are others than the night before: {ops}."
    yield from result["clock"]
    yield from result["skipped"]


def _title(item: dict[str, Any]) -> str:
    return f"{item['change']} {item['id']} {item['op']}: {item['signature']}"


def _details(item: dict[str, Any]) -> Iterator[str]:
    yield item["sentence"]
    count = item["cases"]
    where = f"{count} fixed {'case' if count == 1 else 'cases'}" if count else "no fixed case"
    yield f"Shown by {where}; last nights: {item['shown']} (x failed, . did not, ? did not look)"
    if item["change"] == "FOUND":
        yield "No earlier night ran a case that could show it, so it may be older than tonight."
    if item["since"] and item["change"] != "KNOWN":
        yield from stretch(item["since"])
    yield f"parity replay {item['case']}"
    if item["change"] in ("NEW", "SPREADING", "FOUND"):
        yield f"parity history {item['id']} --bisect"


def _drift(item: dict[str, Any]) -> str:
    by = f"{item['after'] / item['before'] - 1:+.0%}" if item["before"] else "from nothing"
    told = f"{item['before']:.4g} to {item['after']:.4g} ({by})"
    known = ", known since an earlier night" if item["known"] else ""
    return f"{item['op']} {item['of']} of {item['name']}: {told}{known}"


def stretch(of: dict[str, Any]) -> Iterator[str]:
    """Between which nights, and which commits lie there."""
    yield f"Between night {of['last']} and night {of['first']}: {_count(of)}."
    for commit in (of["commits"] or [])[:_COMMITS]:
        yield f"  {commit}"
    if len(of["commits"] or []) > _COMMITS:
        yield f"  and {len(of['commits']) - _COMMITS} more"
    if of["versions"][0] != of["versions"][1]:
        yield "  versions: " + " became ".join(of["versions"])


def _count(of: dict[str, Any]) -> str:
    commits = of["commits"]
    if commits is None:
        between = f"{of['last_commit'][:12]}..{of['first_commit'][:12]}"
        return f"git does not know the commits {between} here"
    return f"{len(commits) or 'no'} {'commit' if len(commits) == 1 else 'commits'} between"


def _not_run(result: dict[str, Any]) -> Iterator[str]:
    for item in result["not_run"]:
        yield f"NOT_RUN {item['op']}, {item['count']} cases: {item['reason']}"
