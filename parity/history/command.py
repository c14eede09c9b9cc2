"""``parity history``: what the nights know, and which commit is to blame for a failure."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from .. import git
from ..arms import project_root, workspace
from ..git import Refused
from ..interrupts import deferred
from ..options import refuse_idle
from ..verdict import Exit
from . import store
from .compare import commits_of, since
from .drift import drifts
from .night import Key, Night, name_of, title_of
from .query import Appearance, appearances, find, series


@click.command()
@click.argument("failure", required=False)
@click.option(
    "--history",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder that keeps the nights [default: .parity/history].",
)
@click.option("--machine", help="Nights of this machine only.")
@click.option("--bisect", is_flag=True, help="Find the first commit that shows FAILURE.")
@click.option("--good", metavar="REF", help="Bisect from here [default: the night before].")
def history(
    failure: str | None, folder: Path | None, machine: str | None, bisect: bool, good: str | None
) -> int:
    """What the nights know: every failure, or when FAILURE first appeared and since which commits.

    FAILURE is an id that `parity nightly` prints, or words of its line.
    """
    if failure is None:
        refuse_idle("without FAILURE", "bisect")
    if not bisect:
        refuse_idle("without --bisect", "good")
    project = project_root()
    folder = folder or workspace(project) / "history"
    known = store.read(folder)
    nights = [night for night in known.nights if machine in (None, night.machine)]
    for sentence in known.skipped:
        _say(sentence)
    if not nights:
        raise Refused(_no_nights(folder, machine, known.nights), Exit.NOTHING_COMPARED)
    if failure is None:
        for line in _overview(nights):
            _say(line)
        return Exit.OK
    key = find(nights, failure)
    found = [item for run in series(nights) for item in appearances(run)]
    seen = [item for item in found if item.failure.key == key]
    for line in _story(key, seen, project):
        _say(line)
    return _bisect(project, seen, good) if bisect else Exit.OK


def _say(line: str) -> None:
    from ..reports.plain import plain

    click.echo(plain(line))


def _no_nights(folder: Path, machine: str | None, others: Sequence[Night]) -> str:
    if not others:
        return f"Expected nights in {folder} but found none; run `parity nightly` first."
    machines = ", ".join(sorted({night.machine for night in others}))
    return (
        f"Expected nights of machine {machine!r} in {folder} but found only those of {machines}; "
        "name one of them."
    )


def _overview(nights: list[Night]) -> Iterator[str]:
    """Every machine, its failures and what drifts as of its last night."""
    for run in series(nights):
        first, last = run[0], run[-1]
        yield (
            f"{last.machine}, {last.tier}{last.ops and ', '}{last.ops}: {len(run)} nights, "
            f"{first.started} to {last.started}"
        )
        for found in appearances(run):
            named = f"{name_of(found.failure.key)} {title_of(found.failure.key)}"
            yield f"  {named}: {_where(found, last)}"
        for drift in drifts(run):
            op, of, name = drift.series
            told = f"{drift.before:.4g} to {drift.after:.4g} since night {drift.first.id}"
            yield f"  DRIFT {op} {of} of {name}: {told}"


def _where(found: Appearance, tonight: Night) -> str:
    state = "still there" if found.last is tonight else f"last in night {found.last.id}"
    unsteady = ", flickers" if found.flickers else ""
    return f"first in night {found.first.id}, shown by {found.count}, {state}{unsteady}"


def _story(key: Key, seen: list[Appearance], project: Path) -> Iterator[str]:
    from ..reports.nightly import stretch

    commits = commits_of(project)
    yield f"{name_of(key)} {title_of(key)}"
    for found in seen:
        first = found.first
        yield f"On {first.machine}: first in night {first.id} ({first.started}) at {first.commit}"
        if found.before is None:
            yield "  No earlier night ran a case that could show it, so it may be older."
        else:
            yield from (f"  {line}" for line in stretch(since(found.before, first, commits)))
        yield f"  {found.failure.sentence}"
        yield f"  Shown by {found.count} nights, the last of them {found.last.id}."


def _bisect(project: Path, seen: list[Appearance], good: str | None) -> int:
    """Name the first bad commit; a failure that comes and goes would accuse one by chance."""
    from .bisect import Bisection  # it starts processes, which reading the history never does

    found = next((item for item in seen if item.before is not None), seen[0])
    if found.flickers:
        raise Refused(
            "Expected a failure that is there or not but this one comes and goes, so a bisection "
            f"would name a commit by chance; run `parity replay {found.failure.case_id}` often.",
            Exit.INCONCLUSIVE,
        )
    top = git.top_level(project)
    if good is None and found.before is None:
        raise Refused("Expected a commit that passes but no night knows one; name it with --good.")
    start = git.commit(top, good, "good") if good else str(found.before and found.before.commit)
    with deferred(), tempfile.TemporaryDirectory() as scratch:
        ops = found.first.ops or None
        bisection = Bisection(project, ops, found.failure, Path(scratch), _say)
        culprit = bisection.first_bad(start, git.commit(top, found.first.commit, "first night"))
    others = culprit.commits[1:]
    told = "one of these is the first bad commit" if others else "first bad commit"
    _say(f"After {culprit.tried} runs, {told}:")
    for commit in culprit.commits:
        _say("  " + git.git(top, "log", "-1", "--no-decorate", "--format=%H %an: %s", commit))
    return Exit.INCONCLUSIVE if others else Exit.REGRESSION
