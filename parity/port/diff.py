"""What git says about two trees: files with their renames, and the lines that differ.

Line endings do not count: a port may turn a file from LF to CRLF and keep every line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..git import _INHERITED, GitError, Refused, git

# Every option that a user's configuration could turn otherwise.  Without the indent heuristic both
# diffs slide a block among equal lines to the same end, so that they agree which of them is new.
PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-relative", "--submodule=short")
PATCH = ("-U0", "--inter-hunk-context=0", "--full-index", "--ignore-cr-at-eol")
ALIGN = ("--diff-algorithm=histogram", "--no-indent-heuristic")
HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
INDEX = re.compile(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+)", re.MULTILINE)


@dataclass(frozen=True)
class Hunk:
    """Lines of the old file that lines of the new one replace; both count from 1.

    An empty block has the number of the line that follows it.
    """

    old_start: int
    old: tuple[str, ...]
    new_start: int
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """One file that differs: git's letter, its path before and after, and its hunks.

    A ``binary`` file has none; its content is known by the blob ids alone.
    """

    status: str
    old_path: str
    new_path: str
    hunks: tuple[Hunk, ...] = ()
    binary: bool = False


@dataclass(frozen=True)
class Tree:
    """A commit or tree id, and the environment in which git finds its objects."""

    id: str
    environment: dict[str, str]


def raw(folder: Path, environment: dict[str, str], *arguments: str) -> bytes:
    """The output of one git command, byte for byte.  Raises GitError where it fails."""
    inherited = {name: text for name, text in os.environ.items() if name not in _INHERITED}
    command = ["git", "-c", "core.safecrlf=false", "-C", str(folder)]
    done = subprocess.run(
        [*command, *arguments], env=inherited | environment, capture_output=True, check=False
    )
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise GitError(message[-1])
    return done.stdout


@contextmanager
def working_tree(top: Path) -> Iterator[Tree]:
    """The files as they are now, untracked ones included, as a tree in a private object store.

    It works in the middle of a merge and touches neither the index nor the objects of the user.
    """
    with tempfile.TemporaryDirectory(prefix="parity-port-") as folder:
        index, objects = (
            Path(git(top, "rev-parse", "--path-format=absolute", "--git-path", name))
            for name in ("index", "objects")
        )
        environment = {
            "GIT_INDEX_FILE": f"{folder}/index",
            "GIT_OBJECT_DIRECTORY": f"{folder}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects),
        }
        Path(folder, "objects").mkdir()
        if index.exists():  # saves reading the files that have not changed since
            shutil.copy2(index, environment["GIT_INDEX_FILE"])
        raw(top, environment, "add", "--all")
        yield Tree(raw(top, environment, "write-tree").decode().strip(), environment)


def parent(folder: Path, commit: str) -> str:
    """The first parent of a commit, or the empty tree; Refused where a shallow clone lacks it."""
    header = raw(folder, {}, "cat-file", "commit", commit).split(b"\n\n")[0]
    parents = re.findall(rb"^parent ([0-9a-f]+)$", header, re.MULTILINE)
    if not parents:
        return git(folder, "hash-object", "-t", "tree", os.devnull)
    first: str = parents[0].decode()
    try:
        raw(folder, {}, "cat-file", "-e", first)
    except GitError as error:
        raise Refused(
            f"Expected the parent {first[:12]} of {commit[:12]} but this clone is shallow; "
            "run `git fetch --unshallow` first."
        ) from error
    return first


def diff(folder: Path, old: str, new: Tree, paths: tuple[str, ...] = ()) -> list[FileDiff]:
    """The files that differ between a commit and a tree, renames found by their content."""
    common = ("diff", "-M", "-z", *PLAIN)
    ends = (old, new.id, "--", *paths)
    listed = raw(folder, new.environment, *common, "--raw", "--no-abbrev", *ends)
    patch = raw(folder, new.environment, *common, *PATCH, *ALIGN, *ends)
    sections = dict(_sections(patch))
    return [_file(entry, sections) for entry in _entries(listed)]


def _entries(listed: bytes) -> Iterator[tuple[str, str, str, str, str]]:
    """Status, blob ids before and after, path before and after."""
    fields = iter(listed.decode(errors="surrogateescape").split("\0"))
    for header in fields:
        if header:
            _, _, old, new, status = header.split(" ")
            path = next(fields)
            yield status[0], old, new, path, next(fields) if status[0] in "RC" else path


def _sections(patch: bytes) -> Iterator[tuple[tuple[str, str], bytes]]:
    """The text of each file's patch by its blob ids; no line of a file starts like a header."""
    for section in re.split(rb"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        index = INDEX.search(section)
        if index:
            yield (index[1].decode(), index[2].decode()), section


def _file(
    entry: tuple[str, str, str, str, str], sections: dict[tuple[str, str], bytes]
) -> FileDiff:
    status, old, new, old_path, new_path = entry
    none = "0" * len(old)
    # A file that becomes a link is shown as one that goes and one that comes.
    pairs = [(old, none), (none, new)] if status == "T" else [(old, new)]
    texts = [sections[pair] for pair in pairs if pair in sections]
    found = (hunk for text in texts for hunk in _hunks(text))
    hunks = tuple(sorted(found, key=lambda hunk: (hunk.old_start, len(hunk.old))))
    binary = not hunks and any(b"\nBinary files " in text for text in texts)
    return FileDiff(status, old_path, new_path, hunks, binary)


def _hunks(section: bytes) -> Iterator[Hunk]:
    lines = iter(section.split(b"\n"))
    for line in lines:
        header = HUNK.match(line)
        if header:
            old_start, old, new_start, new = (int(group or 1) for group in header.groups())
            # git gives an empty block the number of the line before it
            yield Hunk(
                old_start + (old == 0), _take(lines, old), new_start + (new == 0), _take(lines, new)
            )


def _take(lines: Iterator[bytes], count: int) -> tuple[str, ...]:
    """The next lines of a hunk without their sign; the note on a missing last newline is none."""
    taken: list[str] = []
    while len(taken) < count:
        line = next(lines)
        if not line.startswith(b"\\"):
            taken.append(line[1:].removesuffix(b"\r").decode(errors="surrogateescape"))
    return tuple(taken)


def blame(top: Path, commit: str | None, path: str, lines: list[int]) -> dict[int, str]:
    """The commit that wrote each line of a file, as of ``commit`` or of the working tree.

    A line that no commit has yet is left out.
    """
    ranges = [word for line in lines for word in ("-L", f"{line},{line}")]
    revision = [commit] if commit else []
    try:
        told = raw(top, {}, "blame", "--porcelain", *ranges, *revision, "--", path)
    except GitError:  # an untracked file
        return {}
    found = re.findall(rb"^([0-9a-f]{40,64}) \d+ (\d+)", told, re.MULTILINE)
    return {int(line): by.decode() for by, line in found if by.strip(b"0")}
