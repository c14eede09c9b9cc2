"""JUnit XML as pytest, xdist and others write it, read as a stream: a file may be of any size."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from .results import COLLECT, Failure, Outcome, node_id
from .signature import failure

KEPT = 1 << 18  # characters of one traceback: the frames that matter stand at its end
WORD = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def read_junit(path: Path) -> list[Outcome]:
    """One outcome for each testcase element.

    Raises:
        ValueError: not well-formed, no JUnit file, or with a document type: entities that expand
            without end need one, and no test runner writes one.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except expat.ExpatError as error:
        raise ValueError(
            f"Expected well-formed JUnit XML in {path} but got {expat.ErrorString(error.code)} in "
            f"line {error.lineno}, column {error.offset}; check that the test run ended by itself."
        ) from error
    except _Unexpected as error:
        raise ValueError(f"Expected JUnit XML in {path} but got {error}.") from error
    return reader.outcomes


class _Unexpected(Exception):
    """What came instead of a JUnit file."""


def _refuse_doctype(name: str, system: str | None, public: str | None, internal: int) -> None:
    raise _Unexpected(f"a document type {name!r}; write the file again with pytest --junitxml")


@dataclass
class _Reader:
    """The testcase that is open, and the outcomes of those that are closed."""

    outcomes: list[Outcome] = field(default_factory=list)
    depth: int = 0
    case: dict[str, str] | None = None
    word: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    said: str = ""
    failures: list[Failure] = field(default_factory=list)
    skipped: bool = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if self.depth == 0 and tag not in ("testsuites", "testsuite"):
            raise _Unexpected(f"a root element {tag!r}; write the file with pytest --junitxml")
        self.depth += 1
        if tag == "testcase":
            self.case, self.failures, self.skipped = attributes, [], False
        elif self.case is not None and tag in WORD:
            self.word, self.attributes, self.said = tag, attributes, ""

    def text(self, data: str) -> None:
        if self.word:
            self.said = (self.said + data)[-KEPT:]

    def end(self, tag: str) -> None:
        self.depth -= 1
        if self.case is None:
            return
        if tag == self.word:
            self._told(self.case)
        elif tag == "testcase":
            status = "failed" if self.failures else "skipped" if self.skipped else "passed"
            broken = any(failed.phase == COLLECT for failed in self.failures)
            name = node_id(self.case.get("name", ""), "") if broken else _id(self.case)
            self.outcomes.append(Outcome(name, status, tuple(self.failures)))
            self.case = None

    def _told(self, case: dict[str, str]) -> None:
        message = self.attributes.get("message", "")
        if self.word == "skipped":
            self.skipped = True
        else:
            kind = self.attributes.get("type", "")
            self.failures.append(failure(_id(case), message, self.said, kind=kind))
        self.word = ""


def _id(case: dict[str, str]) -> str:
    return node_id(case.get("classname", ""), case.get("name", ""), case.get("file", ""))
