"""Run one command in an arm: its pytest processes keep journals, and none of them outlives it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import git
from ..git import Refused
from ..verdict import Exit
from .log import OUTSIDE, Session, outcomes, read_log
from .results import SESSION, Failure, Outcome, Results, merge
from .signature import frames_of_stack, own_frame, placed

GRACE = 5.0  # seconds between asking a process to end and killing it
PLUGIN = "parity_triage.plugin"
# A hook that runs parity hands these on; the suite's own git commands would follow them.
_OF_A_HOOK = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX", "GIT_COMMON_DIR")


@dataclass(frozen=True)
class Place:
    """Where a command runs: an arm's tree, the folder in it, and where its journals go.

    ``checkout`` is the user's, whose code must not be imported in the arm's place; nor must an
    installed copy of the files that differ between the arms, ``changed``.  None where the tree is
    the user's own.
    """

    name: str
    tree: Path
    inside: Path
    folder: Path
    checkout: Path | None
    changed: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """What the command printed."""
        return self.folder.with_suffix(".log")


@dataclass(frozen=True)
class Ran:
    """What a command left: the outcome of every test, and the sessions that reported them."""

    results: Results
    sessions: list[Session]


def run(place: Place, command: list[str], deadline: float, only: list[str] | None = None) -> Ran:
    """Run a command in an arm, to its end or to the deadline.

    ``only`` restricts every pytest session in it to these node ids.

    Raises:
        Refused: the command does not start, starts no pytest session, or its tests imported
            other code than the arm's.
    """
    place.folder.mkdir(parents=True)
    token = secrets.token_hex(16)
    environment = _environment(place, token, only)
    code = _execute(place, _command(command, place), environment, token, deadline)
    journals = sorted(place.folder.glob("*.journal"))
    if not journals:
        how = f"exit code {code}" if code is not None else f"no end within {deadline:g} seconds"
        raise Refused(
            f"Expected the command to run pytest but on {place.name} no session started ({how}); "
            f"see {place.log}."
        )
    _refuse_other_code(place)
    sessions = [read_log(path) for path in journals]
    stacks = [_stopped_in(path.with_suffix(".stack")) for path in journals]
    told = [
        outcome
        for session, stack in zip(sessions, stacks, strict=True)
        for outcome in outcomes(session, stopped=stack, late=code is None)
    ]
    return Ran(merge([*told, *_around(sessions, code)]), sessions)


def _environment(place: Place, token: str, only: list[str] | None) -> dict[str, str]:
    """The user's environment, with the arm first on the import path and our plugin loaded."""
    plugins = place.folder / "plugins"
    copied = (plugins / PLUGIN.replace(".", "/")).with_suffix(".py")
    copied.parent.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("plugin.py"), copied)
    environment = {name: text for name, text in os.environ.items() if name not in _OF_A_HOOK}
    sources = [folder for folder in (place.tree / "src", place.tree) if folder.is_dir()]
    path = [*map(str, (plugins, *sources)), environment.get("PYTHONPATH", "")]
    options = [environment.get("PYTEST_ADDOPTS", ""), f"-p {PLUGIN}"]
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTEST_ADDOPTS": " ".join([*filter(None, options), "--continue-on-collection-errors"]),
        "PARITY_TRIAGE_FOLDER": str(place.folder),
        "PARITY_TRIAGE_TOKEN": token,
    }
    if only is not None:
        asked = place.folder / "only.json"
        asked.write_text(json.dumps(only), encoding="utf-8")
        environment["PARITY_TRIAGE_ONLY"] = str(asked)
    return environment


def _command(command: list[str], place: Place) -> list[str]:
    """The command; a program that only the checkout holds, as in .venv, is found there."""
    program = Path(command[0])
    if "/" in command[0] and not (place.inside / program).exists() and program.exists():
        return [str(program.absolute()), *command[1:]]
    return command


def _execute(
    place: Place, command: list[str], environment: dict[str, str], token: str, deadline: float
) -> int | None:
    """The exit code, or None at the deadline; nothing that it started is left."""
    with place.log.open("wb") as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=place.inside,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(
                f"Expected the command to start but {command[0]!r} does not: {error.strerror}; "
                "name a program on PATH, or by its absolute path."
            ) from error
        try:
            return process.wait(deadline)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process, token)


def _end(process: subprocess.Popen[bytes], token: str) -> None:
    """Ask whatever is left of a command to end, and kill what does not."""
    _signal_all(process, token, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while (process.poll() is None or any(_family(token))) and time.monotonic() < until:
        time.sleep(0.05)
    _signal_all(process, token, signal.SIGKILL)
    process.wait()


def _signal_all(process: subprocess.Popen[bytes], token: str, which: signal.Signals) -> None:
    for number in _family(token):
        with suppress(ProcessLookupError):
            os.kill(number, which)
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, which)


def _family(token: str) -> Iterator[int]:
    """The processes that inherited a token; launchers give ranks sessions of their own."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


def _stopped_in(path: Path) -> str | None:
    """The frame in which a process was told to end, or None if nobody told it."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if not text:
        return None
    frame = own_frame(frames_of_stack(text))
    return placed(frame) if frame else ""


def _around(sessions: list[Session], code: int | None) -> Iterator[Outcome]:
    """Failures that no session can report itself."""
    world = max(session.world for session in sessions)
    seen = {session.rank for session in sessions}
    for rank in range(world) if world > 1 else ():
        if rank not in seen:
            yield _outside("a rank started no pytest session", rank)
    if code and all(session.status == 0 for session in sessions):
        yield _outside(f"the command ended with exit code {code} and no test explains it")


def _outside(kind: str, *ranks: int) -> Outcome:
    return Outcome(OUTSIDE, "failed", (Failure(kind, phase=SESSION, ranks=ranks),))


def _refuse_other_code(place: Place) -> None:
    """Refuse results of code that is not the arm's: an install can win over it."""
    if place.checkout is None:
        return
    tracked = set(git.git(place.checkout, "ls-files", "-z").split("\0"))
    for path in sorted(place.folder.glob("*.imports")):
        for file in map(Path, json.loads(path.read_text("utf-8"))):
            inside = file.is_relative_to(place.checkout) and _relative(file, place.checkout)
            if inside in tracked or _is_installed_copy(file, place.changed):
                raise Refused(
                    f"Expected the tests on {place.name} to import that revision but they "
                    f"imported {file}; uninstall it, or take it off PYTHONPATH.",
                    Exit.FAULT,
                )


def _relative(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()


def _is_installed_copy(file: Path, changed: tuple[str, ...]) -> bool:
    """Whether an installed file is one that differs between the arms, by its place in a package."""
    _, _, name = file.as_posix().rpartition("-packages/")
    return "/" in name and any(f"/{path}".endswith(f"/{name}") for path in changed)
