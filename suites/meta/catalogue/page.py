"""Prints docs/catalogue.md: ``python -m suites.meta.catalogue.page > docs/catalogue.md``."""

from __future__ import annotations

from parity.verdict import Verdict

from . import backward, calls, kernels, tables  # noqa: F401  they enter their bugs
from .bug import BUGS
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

A finding is a check and the tensor on which it fails. A *hazard* is what the accesses of a kernel allow on hardware; only the CPU tier sees every access, and without a change in bits it changes no exit code. All others are found on both tiers.

| planted bug | what it does | found as | verdict |
|---|---|---|---|
"""  # noqa: E501  a paragraph of Markdown is one line


def _shown_by(entry: Entry) -> str:
    tests = [f"`{test.replace('::', '`, `')}`" for test in entry.tests]
    shown = [*(f"`{bug}`" for bug in entry.bugs), *tests]
    return "; ".join([*shown, entry.why] if entry.why else shown)


def _found_as(check: str, tensor: str, verdict: Verdict) -> str:
    found = f"`{check}`, {tensor}" if check else "unsupported"
    return f"{found} | {'IDENTICAL, HAZARD' if check == 'hazard' else verdict}"


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
    bugs = [
        f"| `{name}` | {bug.what} | {_found_as(bug.check, bug.tensor, bug.verdict)} |\n"
        for name, bug in BUGS.items()
    ]
    return "".join([head, *reports, BUGS_HEAD, *bugs])


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201  printing is what it is for
