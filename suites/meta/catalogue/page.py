"""Prints docs/catalogue.md: ``python -m suites.meta.catalogue.page > docs/catalogue.md``."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from . import backward, calls, kernels, races, tables, tuning  # noqa: F401  they enter their bugs
from .bug import BUGS, Bug
from .entries import ENTRIES, Entry

HEAD = """\
# Catalogue

Bugs of fused RoPE kernels, and of the harnesses that judged them, that were reported in public: {entries} reports. For {shown} of them a bug of the same kind is planted in `suites/meta/catalogue`, in words and code of our own, {bugs} bugs in all; the harness must find each of them as the finding below, the gate must give it the verdict below where base runs its honest twin, and the twin must pass. {elsewhere} are shown by a test of another suite only, and {never} cannot be shown.

This page is printed by `python -m suites.meta.catalogue.page > docs/catalogue.md`; a test holds it to the table it is printed from.

## Reports

| | report | what was wrong | shown by |
|---|---|---|---|
"""  # noqa: E501  a paragraph of Markdown is one line
BUGS_HEAD = """
## Planted bugs

A finding is a check and the tensor on which it fails. A *hazard* is what the accesses of a kernel allow on hardware; only the CPU tier sees every access, and without a change in bits it changes no exit code. All others rest on checks that both tiers have.

The tests run each bug on one case that is made for it. The last column is from `python -m suites.meta.catalogue.search`, which runs each on the cases that every session plans for its op, in their order, until one shows something: all of them are shown, half by case {half} or before, the last by case {last}, and no honest twin fails any of its planned cases.

| planted bug | what it does | found as | verdict | first planned case that shows it |
|---|---|---|---|---|
"""  # noqa: E501  a paragraph of Markdown is one line


def _shown_by(entry: Entry) -> str:
    tests = [f"`{test.replace('::', '`, `')}`" for test in entry.tests]
    shown = [*(f"`{bug}`" for bug in entry.bugs), *tests]
    return "; ".join([*shown, entry.why] if entry.why else shown)


FILE = Path(__file__).with_name("search.json")


def _found_as(bug: Bug) -> str:
    found = f"`{bug.check}`, {bug.tensor}" if bug.check else "unsupported"
    return f"{found} | {'IDENTICAL, HAZARD' if bug.check == 'hazard' else bug.verdict}"


def page() -> str:
    """The page."""
    head = HEAD.format(
        entries=len(ENTRIES),
        shown=sum(bool(entry.bugs) for entry in ENTRIES),
        bugs=len(BUGS),
        elsewhere=sum(bool(entry.tests and not entry.bugs) for entry in ENTRIES),
        never=sum(not entry.tests and not entry.bugs for entry in ENTRIES),
    )
    reports = [f"| {e.id} | {e.report} | {e.what} | {_shown_by(e)} |\n" for e in ENTRIES]
    search = json.loads(FILE.read_text(encoding="utf-8"))
    names = dict.fromkeys(bug for entry in ENTRIES for bug in entry.bugs)
    cases = [search[name]["case"] for name in names]
    bugs = [
        f"| `{name}` | {BUGS[name].what} | {_found_as(BUGS[name])} | "
        f"{search[name]['case']} of {search[name]['planned']}, `{search[name]['as']}` |\n"
        for name in names
    ]
    bugs_head = BUGS_HEAD.format(half=int(median(cases)), last=max(cases))
    return "".join([head, *reports, bugs_head, *bugs])


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201  printing is what it is for
