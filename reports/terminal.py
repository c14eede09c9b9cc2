"""A run on the terminal: header, table of verdicts, what the change did, and what was so before.

Everything comes from ``run.json``, ``environment.json`` and ``result.json``; nothing is decided
here.  Names and messages come from code under test, so they are shown as plain text: no markup, no
control characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..runs import Run, readable
from ..verdict import EXIT_CODES, Exit, Verdict, alone
from .mutation import summary, survivors
from .plain import plain

TIERS = {"gpu": "GPU", "interpreter": "Triton's interpreter on the CPU"}
WITHOUT_SENTENCE = ("IDENTICAL",)
WIDE = 200  # columns where no terminal cuts them


def console() -> Console:
    """Standard output; a pipe or a file gets long lines and no control characters."""
    output = Console(highlight=False)
    return output if output.is_terminal else Console(highlight=False, width=WIDE)


def show_header(output: Console, run: dict[str, Any], environment: dict[str, Any]) -> None:
    """Which tier, which versions, which two arms, how many cases."""
    versions = ", ".join(f"{name} {v}" for name, v in sorted(environment["versions"].items()))
    _line(output, f"Tier: {TIERS.get(environment['tier'], environment['tier'])} ({versions})")
    for name, arm in run["arms"].items():
        _line(output, f"{name}: {revision(arm)}")
    base, head = run["arms"]["base"], run["arms"]["head"]
    if base["commit"] and base["commit"] == head["commit"] and not head["dirty"]:
        _line(output, "The working tree holds no change: both arms run the same code.")
    _line(output, f"{run['cases']} cases, seed {run['seed']}")
    for name, count in run.get("recalled", {}).items():
        if count:
            _line(output, f"{name}: {count} results are kept from before; only the rest runs.")


def revision(arm: dict[str, Any]) -> str:
    """What an arm is, in a few words."""
    if "file" in arm:
        return f"{arm['ref'] or arm['root']} {arm['commit'][:12]}, as recorded in {arm['file']}"
    if arm["kind"] == "import_root":
        return str(arm["root"])
    changes = " with uncommitted changes" if arm["dirty"] else ""
    return f"{arm['ref']} at {arm['commit'][:12]}{changes}"


def title(run: Run) -> str:
    """Which run this is, when it began and what its head was."""
    described, started = run.document("run"), run.document("environment").get("started")
    with readable(run):
        told = [described.get("kind", "run"), *([f"of {started}"] if started else [])]
        head = described.get("arms", {}).get("head")
        return f"{run.id} ({' '.join(told)}{f', head {revision(head)}' if head else ''})"


def show_result(output: Console, result: dict[str, Any], folder: str) -> None:
    """The table, the findings, and the line that says how it ended."""
    _line(output)
    output.print(_table(result["ops"]))
    told = [item for item in result["items"] if item["verdict"] not in WITHOUT_SENTENCE]
    for item in told:
        if not _as_before(item):
            _line(output)
            _finding(output, item)
    _alike(output, [item for item in told if _as_before(item)])
    for entry in result.get("known_issues", ()):
        _line(output)
        _line(output, f"Known issue, {entry_state(entry)}: {entry['op']}, {entry['signature']}")
        _line(output, f"  {entry['reason']} ({entry['address']})")
    _line(output)
    _line(output, f"Records: {folder} (each finding by itself: parity report --html report.html)")
    if power := result.get("power"):
        for line in survivors(power):
            _line(output, line)
        _line(output)
        _line(output, f"Power: {summary(power)}")
    _line(output, result["sentence"], "bold")


def _table(ops: dict[str, dict[str, int]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("op", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("cases", justify="right")
    for op, counts in ops.items():
        for index, (verdict, count) in enumerate(counts.items()):
            name = "" if index else plain(op)
            table.add_row(Text(name), Text(verdict, _style(verdict)), Text(str(count)))
    return table


def _as_before(item: dict[str, Any]) -> bool:
    """Whether it is so in base as well; these are many, and like ones are told together."""
    return (
        Verdict(item["verdict"]).as_before
        and not item.get("known")
        and not item["family"].endswith(alone("head"))
    )


def _alike(output: Console, items: list[dict[str, Any]]) -> None:
    """Two lines for all findings of one verdict and check, with the one that most cases show."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for item in items:
        check, *_ = item["family"].split(" | ")
        check = "" if item["verdict"] == "UNSUPPORTED" else check
        groups.setdefault((item["verdict"], check), []).append(item)
    if groups:
        _line(output)
        _line(output, "Not this change's, the like together:")
    for (verdict, check), group in groups.items():
        cases = {case for item in group for case in item["cases"]}
        shown = max(group, key=lambda item: len(item["cases"]))
        title = f" {', '.join(_distinct(item['op'] for item in group))}, {_cases(len(cases))}"
        what = f": {check}, {_what(group)}" if check else ""
        again = f"   {shown['replay']}"
        output.print(
            Text.assemble((verdict, _style(verdict)), plain(title + what + again)), soft_wrap=True
        )
        alike = f" Base fails alike in case {shown['evidence']}." if shown["evidence"] else ""
        _line(output, f"  {shown['sentence']}{alike}")


def _what(group: list[dict[str, Any]]) -> str:
    """Kinds of error and where, from families that are ``check | tensor | error | frame``."""
    parts = [[*item["family"].split(" | "), "", ""] for item in group]
    errors, tensors = (", ".join(_distinct(part[index] for part in parts)) for index in (2, 1))
    return f"{errors} ({tensors})"


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _cases(count: int) -> str:
    return f"{count} {'case' if count == 1 else 'cases'}"


def _finding(output: Console, item: dict[str, Any]) -> None:
    title = Text.assemble(
        (item["verdict"], _style(item["verdict"])),
        f" {plain(item['op'])}, {_cases(len(item['cases']))}",
    )
    output.print(title, soft_wrap=True)
    _line(output, f"  {item['sentence']}")
    if item.get("known"):
        _line(output, f"  Known issue: {item['known']}")
    if item["evidence"]:
        _line(output, f"  Base fails alike in case {item['evidence']}.")
    for tensor, (before, after) in sorted(item["headroom"].items()):
        _line(output, f"  {tensor}: {before:.3g} of its bound used before, {after:.3g} now")
    if item["shrinking_exhausted"]:
        _line(output, "  Shrinking stopped at its budget; a smaller case may exist.")
    _line(output, f"  {item['replay']}   # {item['minimal_summary']}")


def entry_state(entry: dict[str, Any]) -> str:
    """What became of an entry of the known-issues file."""
    states = {
        "matched": f"counts until {entry['expires']}",
        "stale": "stale, since no failure of this run is one; take it out",
        "expired": f"expired on {entry['expires']} and counts as none",
    }
    return ("new with this change, " if entry["new"] else "") + states[entry["state"]]


def _style(verdict: str) -> str:
    if EXIT_CODES[Verdict(verdict)] == Exit.REGRESSION:
        return "bold red"
    return "green" if verdict in ("IDENTICAL", "FIXED", "NEW_CAPABILITY") else "yellow"


def _line(output: Console, text: str = "", style: str = "") -> None:
    output.print(Text(plain(text), style), soft_wrap=True)
