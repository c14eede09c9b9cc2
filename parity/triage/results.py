"""Test results as triage compares them: one outcome for each test, whatever file they came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

# A rank that failed speaks for the test; one that never ran it is a doubt that a pass cannot lift.
STATUSES = ("failed", "not_run", "passed", "skipped")
# When a failure happened: in the import of a test file, or outside any test.
COLLECT, SESSION = "collect", "session"

_MODULE = re.compile(r"test_.*|.*_test|tests?")


@dataclass(frozen=True)
class Failure:
    """One failure of one test.

    ``kind`` is exception class and message, ``place`` the frames that tell it from others of its
    kind, both free of what differs from run to run; ``sibling`` is ``kind`` without the parameters
    of its own test; ``exact`` is the message with its values.  ``ranks`` are those that failed,
    none where there is only one process.
    """

    kind: str
    place: str = ""
    sibling: str = ""
    exact: str = ""
    phase: str = "call"
    ranks: tuple[int, ...] = ()

    @property
    def signature(self) -> str:
        """One line that failures of one cause share."""
        return " | ".join(part for part in (self.kind, self.place) if part)


@dataclass(frozen=True)
class Outcome:
    """What became of one test in one arm; ``id`` is its node id as pytest prints it."""

    id: str
    status: str
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"Expected a status among {STATUSES} but got {self.status!r}.")
        if (self.status == "failed") != bool(self.failures):
            raise ValueError(
                f"Expected failures exactly when a test failed but got status {self.status!r} "
                f"with {len(self.failures)} failures."
            )


Results = Mapping[str, Outcome]  # by key


def key(node_id: str) -> str:
    """The id with dots for every separator, as JUnit files have it: what tests are matched by."""
    path, bracket, parameters = node_id.partition("[")
    file, *names = path.split("::")
    parts = [file.removesuffix(".py").replace("/", "."), *names]
    return ".".join(part for part in parts if part) + bracket + parameters


def function(key_or_id: str) -> str:
    """A key or an id without its parameters."""
    return key_or_id.partition("[")[0]


def node_id(classname: str, name: str, file: str = "") -> str:
    """The node id behind a JUnit testcase, as well as its attributes tell."""
    dotted = key(classname) if "/" in classname or classname.endswith(".py") else classname
    module = key(file) if file.endswith(".py") else _module(dotted)
    if dotted and not module:
        return "::".join(part for part in (dotted, name) if part)
    inside = f"{dotted}.".startswith(f"{module}.")
    classes = [part for part in dotted[len(module) :].split(".") if part] if inside else []
    path = file or (f"{module.replace('.', '/')}.py" if module else "")
    return "::".join(part for part in (path, *classes, name) if part)


def _module(classname: str) -> str:
    """The part of a dotted name that is a file of tests by its name, or an empty string."""
    parts = classname.split(".")
    named = [index for index, part in enumerate(parts) if _MODULE.fullmatch(part)]
    return ".".join(parts[: named[-1] + 1]) if named else ""


def merge(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """One outcome for each test: reports of several ranks, files or phases come together."""
    merged: dict[str, Outcome] = {}
    for outcome in outcomes:
        name = key(outcome.id)
        known = merged.get(name)
        merged[name] = _join(known, outcome) if known else outcome
    return merged


def _join(one: Outcome, other: Outcome) -> Outcome:
    failures: dict[str, Failure] = {}
    for failure in (*one.failures, *other.failures):
        known = failures.setdefault(failure.signature, failure)
        ranks = tuple(sorted({*known.ranks, *failure.ranks}))
        failures[failure.signature] = replace(known, ranks=ranks)
    status = min(one.status, other.status, key=STATUSES.index)
    return Outcome(one.id, status, tuple(failures.values()))
