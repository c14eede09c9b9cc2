"""``parity port``: does every line that a fix added still stand after a merge or a port?"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exports import ExportFile, export_json
from ..git import GitError, Refused
from ..verdict import Exit

if TYPE_CHECKING:
    from .lines import Fate, Spot

SCHEMA_VERSION = 1


@click.command()
@click.argument("fix_commit")
@click.option(
    "--paths", metavar="PATH", multiple=True, help="Only what the fix did here; may be repeated."
)
@click.option("--head", metavar="REF", help="Look here [default: the files as they are now].")
@click.option("--json", "json_file", type=ExportFile(), help="Write all of it here.")
def port(fix_commit: str, paths: tuple[str, ...], head: str | None, json_file: Path | None) -> int:
    """Show, line by line, whether everything that FIX_COMMIT added still stands.

    Exit code 1 if a line is edited or lost, 5 if the fix adds no line.
    """
    result = compare(Path.cwd(), fix_commit, head, paths)
    if json_file is not None:
        export_json(json_file, result)
    _show(result)
    return int(result["exit_code"])


def compare(
    folder: Path, fix_commit: str, head: str | None, paths: tuple[str, ...]
) -> dict[str, Any]:
    """What became of the lines of a fix, as plain JSON values.

    A merge counts as what it brought to its first parent.  Without ``head`` the target is the
    working tree with its untracked files.

    Raises:
        Refused: no repository, an unknown commit, or a fix that adds no line.
    """
    from .. import git
    from .diff import Tree, diff, parent, working_tree
    from .lines import CAME_BACK, fates

    top = git.top_level(folder)
    fix = _commit(top, fix_commit)
    at = None if head is None else _commit(top, head)
    with working_tree(top) if at is None else nullcontext(Tree(at, {})) as target:
        try:
            added = diff(folder, parent(top, fix), Tree(fix, {}), paths)
            found = fates(added, diff(top, fix, target))
        except GitError as error:
            raise Refused(
                f"Expected git to compare {fix_commit!r} but it says: {error}."
            ) from error
    lines = [fate for fate in found if fate.state != CAME_BACK]
    if not lines:
        where = f" in {', '.join(paths)}" if paths else ""
        raise Refused(
            f"Nothing compared: {fix_commit} ({fix[:12]}) adds no line{where} but blank ones and "
            "brackets; name the commit of a fix that adds code.",
            Exit.NOTHING_COMPARED,
        )
    commits = _blame(top, at, found)
    back = [_document(fate, commits) for fate in found if fate.state == CAME_BACK]
    return {
        "schema_version": SCHEMA_VERSION,
        "fix": fix,
        "target": head or "working tree",
        "lines": [_document(fate, commits) for fate in lines],
        "came_back": back,
    } | _conclusion(
        fix, head or "the working tree", Counter(fate.state for fate in lines), len(back)
    )


def _commit(top: Path, ref: str) -> str:
    from ..git import git

    try:
        wanted = f"{ref}^{{commit}}"
        return git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
    except GitError as error:
        raise Refused(
            f"Expected a commit but git knows no {ref!r}; find it with `git log --all --oneline`."
        ) from error


def _blame(top: Path, at: str | None, found: list[Fate]) -> dict[Spot, str]:
    """The commits that wrote the lines which no longer stand as the fix had them."""
    from .diff import blame
    from .lines import STANDS

    changed = [fate.now for fate in found if fate.now and fate.now.line and fate.state != STANDS]
    lines: dict[str, list[int]] = {}
    for spot in changed:
        lines.setdefault(spot.path, []).append(spot.line)
    commits = {path: blame(top, at, path, numbers) for path, numbers in lines.items()}
    return {spot: commits[spot.path].get(spot.line, "") for spot in changed}


def _document(fate: Fate, commits: dict[Spot, str]) -> dict[str, Any]:
    return fate.to_dict() | {"commit": commits.get(fate.now, "") if fate.now else ""}


def _conclusion(fix: str, target: str, counts: Counter[str], back: int) -> dict[str, Any]:
    from .lines import EDITED, LOST, MOVED, STANDS

    kept = counts[STANDS] + counts[MOVED]
    returned = f"; {back} that it removed came back" if back else ""
    return {
        "counts": {state: counts[state] for state in (STANDS, MOVED, EDITED, LOST)},
        "exit_code": int(Exit.OK if kept == counts.total() else Exit.REGRESSION),
        "sentence": (
            f"{kept} of {counts.total()} lines of {fix[:12]} stand in {target}: "
            f"{counts[STANDS]} in place, {counts[MOVED]} moved, {counts[EDITED]} edited, "
            f"{counts[LOST]} lost{returned}."
        ),
    }


def _show(result: dict[str, Any]) -> None:
    """One row a line; an edited line is followed by what it is now."""
    from rich.text import Text

    from ..reports.plain import plain
    from ..reports.terminal import console

    rows = [_row(item) for item in (*result["lines"], *result["came_back"])]
    widths = [max(len(row[column]) for row in rows) for column in (1, 2)]
    output = console()
    colours = {"lost": "red", "edited": "red", "moved": "yellow", "came back": "yellow"}
    for state, fix, now, text in rows:
        line = f"{state:9}  {fix:{widths[0]}}  {now:{widths[1]}}  {text}"
        output.print(Text(plain(line.expandtabs(4)), colours.get(state, "")), soft_wrap=True)
    output.print(Text(plain(result["sentence"]), "bold"), soft_wrap=True)


def _row(item: dict[str, Any]) -> tuple[str, str, str, str]:
    fix, now = item["fix"], item["now"]
    place = _where(now) + (f" ({item['commit'][:10]})" if item["commit"] else "") if now else "-"
    text = fix["text"]
    if item["state"] == "edited":
        text += f"  ->  {now['text'].strip()}"
    return item["state"], _where(fix), place, text


def _where(spot: dict[str, Any]) -> str:
    return f"{spot['path']}:{spot['line']}" if spot["line"] else str(spot["path"])
