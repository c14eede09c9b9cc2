"""From what pytest prints of a failure to a signature that the same failure has in every run.

Understands pytest's tracebacks of the styles long, short, line, native and no.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from .results import COLLECT, Failure, function, key

LONGEST = 300  # characters of a message; what differs later is told by the frames
# They say what one test wants, so they identify a cause only together with that test.
ASSERTIONS = ("", "AssertionError", "Failed")

Frame = tuple[str, str]  # path, function

_CHAINED = re.compile(
    r"^.*(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\s*$",
    re.MULTILINE,
)
_PHASE = re.compile(r'failed on (setup|teardown) with "(.*)"\s*', re.DOTALL)
# What pytest writes where a message should stand (before version 6 for set-up and teardown too).
_NO_MESSAGE = {
    "collection failure": COLLECT,
    "test setup failure": "setup",
    "test teardown failure": "teardown",
}
_NATIVE = re.compile(r'(?:E\s)?[\s|+]*File "([^"]+)", line \d+, in (.+)')
_SHORT = re.compile(r"(\S[^:]*):\d+: in (.+)")
_LONG = re.compile(r"(\S[^:]*):\d+: ?([\w.]*)")
_DEF = re.compile(r">?\s*(?:async )?def (\w+)")
_BETWEEN = re.compile(r"(?:_ )+_?\s*")
_CLASS = re.compile(r"((?:\w+\.)*(\w+))(?::\s*(.*)|\s*)")
_TRACEBACK = "Traceback (most recent call last)"

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PATHS = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/][\w.@+~-]+){2,}|[\w.-]+(?:/[\w.@+~-]+)+\.\w+")
_HASHES = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b"
)
# The digits of a dtype or an architecture are its name.
_NUMBERS = re.compile(
    r"\b(?:bf16|[tf]f32|fp\d{1,2}|u?int\d{1,2}|b?float\d+\w*|e\dm\d\w*|sm_?\d+\w?)\b"
    r"|[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?"
)
_LISTS = re.compile(r"N(?:[,\s]+N)+")

_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*)/|^<")
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
_TEST_FOLDER = re.compile(r"(?:.*_)?tests?|testing")


def failure(test_id: str, message: str, text: str, phase: str = "call", kind: str = "") -> Failure:
    """The failure of a test from pytest's message and traceback; ``kind`` is its class if known."""
    message, text = _COLOUR.sub("", message), _COLOUR.sub("", text)
    told = _PHASE.fullmatch(message)
    if told:
        phase, message = told.groups()
    elif message in _NO_MESSAGE:
        phase, message = _NO_MESSAGE[message], ""
    last = _CHAINED.split(text)[-1]
    frames, known = _frames(last)
    message = message or _message(last)
    raised, said = _headline(message, kind or known)
    said += _source(last) if said.startswith("assert ") else ""
    return Failure(
        kind=_titled(raised, said),
        place=_place(frames, test_id, raised in ASSERTIONS and phase == "call"),
        sibling=_titled(raised, _without_parameters(said, test_id)),
        exact=_placeless(message),
        phase=phase,
    )


def normalised(text: str) -> str:
    """One line without numbers, addresses, ids, hashes and paths."""
    line = _placeless(text)
    line = _NUMBERS.sub(lambda match: "N" if match[0][0] in "+-0123456789" else match[0], line)
    return _LISTS.sub("N, N", line)[:LONGEST]


def _placeless(text: str) -> str:
    """One line without what differs between two runs of the same code."""
    return _HASHES.sub("ID", _PATHS.sub("PATH", " ".join(text.split())))


def frames_of_stack(text: str) -> list[Frame]:
    """The frames of the main thread, outermost first, from what faulthandler writes."""
    main = text.rpartition("(most recent call first):")[2]
    return re.findall(r'File "([^"]+)", line \d+ in (\S+)', main)[::-1]


def own_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame that is not a library's."""
    return next((frame for frame in reversed(frames) if not _LIBRARY.search(frame[0])), None)


def placed(frame: Frame) -> str:
    """A frame without line number; an absolute path, which differs between arms, by its name."""
    path = re.sub(r"^(?:\.\./)+", "", frame[0])
    return f"{PurePosixPath(path).name if path.startswith('/') else path}:{frame[1].strip()}"


def _frames(text: str) -> tuple[list[Frame], str]:
    """The frames, outermost first, and the class that the long style names behind the last."""
    frames: list[Frame] = []
    defined = raised = ""
    for line in text.splitlines():
        plain = _NATIVE.fullmatch(line) or _SHORT.fullmatch(line)
        located = None if plain else _LONG.fullmatch(line)
        if plain or _BETWEEN.fullmatch(line):
            defined = ""
        if plain:
            frames.append((plain[1], plain[2]))
        elif located:
            frames.append((located[1], defined or "<module>"))
            defined, raised = "", located[2]
        elif not defined and (begun := _DEF.match(line)):
            defined = begun[1]
    return frames, raised


def _message(text: str) -> str:
    """The message inside a traceback: the lines marked E, else the last line that is a message."""
    marked = [line[1:].strip() for line in text.splitlines() if re.match(r"E\s", line)]
    if marked:
        return "\n".join(marked)
    outside = [line for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    return outside[-1] if outside else ""


def _headline(message: str, kind: str) -> tuple[str, str]:
    """(exception class, first line of the message); an error of another process is told too."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    raised = kind.rpartition(".")[2]
    split = _CLASS.fullmatch(lines[0])
    said = lines[0]
    if split and (split[2] == raised or (not raised and split[2][:1].isupper())):
        raised, said = split[2], split[3] or ""
    elif said.startswith("assert "):
        raised = "AssertionError"
    return raised, f"{said} < {lines[-1]}" if _TRACEBACK in message else said


def _titled(raised: str, said: str) -> str:
    return ": ".join(part for part in (raised, normalised(said)) if part) or "no message"


def _source(text: str) -> str:
    """The asserted source line: two bare asserts of one test are two failures."""
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith(">")]
    return f" in {marked[-1]}" if marked else ""


def _without_parameters(said: str, test_id: str) -> str:
    """A message freed of the parameters of its own test, so that siblings compare equal."""
    inside = test_id.partition("[")[2].removesuffix("]")
    for word in sorted({inside, *inside.split("-")}, key=len, reverse=True):
        if len(word) > 1 and word in said:
            said = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "0", said)
    return said


def _place(frames: list[Frame], test_id: str, asserted: bool) -> str:
    """Where it was raised, as far as that is the cause's and not the test's."""
    top = own_frame(frames)
    places = [] if top is None or _is_file_of(top, test_id) else [placed(top)]
    if frames and frames[-1] != top:
        places.append(f"{PurePosixPath(frames[-1][0]).name}:{frames[-1][1].strip()}")
    if asserted and (top is None or _is_test_code(top[0])):
        places.append(f"in {function(key(test_id))}")
    return " < ".join(places)


def _is_file_of(frame: Frame, test_id: str) -> bool:
    path, test = PurePosixPath(frame[0]), function(key(test_id))
    named = _TEST_FILE.fullmatch(path.name) and path.stem in test.split(".")
    return bool(named) or test.startswith(f"{key(frame[0])}.")


def _is_test_code(path: str) -> bool:
    """By its name; of an absolute path only the last folder counts, the rest is the machine's."""
    pure = PurePosixPath(path)
    folders = pure.parts[-2:-1] if pure.is_absolute() else pure.parts[:-1]
    named = _TEST_FILE.fullmatch(pure.name)
    return bool(named) or any(_TEST_FOLDER.fullmatch(folder) for folder in folders)
