"""What a run leaves behind: findings and records, as JSON lines that survive a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .given import given_text

if TYPE_CHECKING:
    import pandas

SCHEMA_VERSION = 2
# How large a wrong value is, and the rank of that; garbage may or may not be finite.
BANDS = {"bits": 0, "up to 4 bounds": 1, "up to 256 bounds": 2, "far off": 3, "non-finite": 3}
STATUSES = ("passed", "failed", "unsupported", "crashed", "timeout", "infrastructure")


@dataclass(frozen=True)
class Finding:
    """A property that does not hold: which check, on which tensor, how, how much, and where.

    ``check``, ``tensor``, ``error``, ``band``, ``locus`` and ``frame`` are the signature: what kind
    of failure this is.  ``sentence`` is for people and may hold the values of this very case.
    """

    check: str
    tensor: str
    error: str
    band: str = ""
    locus: str = ""
    frame: str = ""
    sentence: str = ""

    @property
    def signature(self) -> str:
        """One line that two failures of one kind share."""
        parts = (self.check, self.tensor, self.error, self.band, self.locus, self.frame)
        return " | ".join(part for part in parts if part)

    @property
    def further(self) -> bool:
        """Whether a run after the case's first one showed it, which was clean then."""
        return ":" in self.check

    @property
    def family(self) -> str:
        """The signature without size and place: the same failure may move and grow."""
        return " | ".join(
            part for part in (self.check, self.tensor, self.error, self.frame) if part
        )


@dataclass(frozen=True)
class Record:
    """The outcome of one case in one arm.

    ``checks`` are the names of the checks that ran, ``digests`` the SHA-256 of every output and
    gradient, ``headroom`` the share of its bound that each of them used (at most 1 where the bound
    holds), ``inputs`` the digest of everything the candidate was given, ``expected`` that of what
    this arm's reference says it should give.  ``ulps`` and ``maps`` are for pictures
    (:mod:`parity.pictures`).  ``hazards`` are failures by analysis that did not strike: no part of
    the status.  ``cost`` is counted (:mod:`parity.cost`), and what kernels moved by tensor in
    ``traffic`` (:mod:`parity.traffic`).  ``not_run`` are the checks of this tier that could not be
    made, each with its reason.
    """

    case_id: str
    op: str
    arm: str
    status: str
    findings: tuple[Finding, ...] = ()
    checks: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    headroom: dict[str, float] = field(default_factory=dict)
    inputs: str = ""
    expected: str = ""
    reason: str = ""
    ulps: dict[str, list[int]] = field(default_factory=dict)
    maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    hazards: tuple[Finding, ...] = ()
    cost: dict[str, int] = field(default_factory=dict)
    traffic: dict[str, dict[str, int]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"Expected a status among {STATUSES} but got {self.status!r}.")
        if (self.status == "failed") != bool(self.findings):
            raise ValueError(
                f"Expected findings exactly when a case failed but got status {self.status!r} "
                f"with {len(self.findings)} findings."
            )
        if self.status in ("passed", "failed") and not self.checks:
            raise ValueError(
                f"Expected at least one check behind status {self.status!r} but got none."
            )

    def gaps(self) -> list[str]:
        """What did not run and why, in one line for each reason."""
        checks: dict[str, list[str]] = {}
        for check, reason in sorted(self.not_run.items()):
            checks.setdefault(reason, []).append(check)
        return [f"{', '.join(names)}: {reason}" for reason, names in checks.items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION} | asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Record:
        """The record that :meth:`to_dict` wrote."""
        values = {name: value for name, value in document.items() if name != "schema_version"}
        for name in ("findings", "hazards"):
            values[name] = tuple(Finding(**finding) for finding in values.get(name, ()))
        values["checks"] = tuple(values["checks"])
        return cls(**values)


def append(path: Path, record: Record) -> None:
    """Add one line and flush it to the disk, so that a later crash cannot lose it.

    A folder that is gone is not made again: what it held would be lost without a word.
    """
    with path.open("a", encoding="utf-8") as file:
        file.write(as_lines([record]))
        file.flush()
        os.fsync(file.fileno())


def mend(path: Path) -> None:
    """Cut off a last line that a crash left unfinished, so that the next one starts afresh."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def as_lines(records: Iterable[Record]) -> str:
    """The text of a file of records."""
    return "".join(json.dumps(record.to_dict(), sort_keys=True) + "\n" for record in records)


def read(path: Path) -> Iterator[Record]:
    """The records of one file; a last line cut off by a crash is passed over."""
    lines = given_text(path).split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield Record.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"Expected a record in line {number} of {path} but got {error}; "
                "delete the line, or move the folder of that run away."
            ) from error


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json_text(document))


def json_text(document: Any) -> str:
    """The text of a JSON file, the same for equal documents."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(run: str | os.PathLike[str]) -> pandas.DataFrame:
    """The records of a run as a pandas DataFrame, one row per finding or passed case.

    ``run`` is the folder of a run (``.parity/runs/<id>``).  Columns: the fields of
    :class:`Record`, and ``check``, ``tensor``, ``error``, ``signature``, ``sentence`` of the
    finding (empty for a case without one).  Raises ValueError if there are no records.
    """
    import pandas

    files = sorted(Path(run).glob("records*.jsonl"))
    if not files:
        raise ValueError(
            f"Expected records*.jsonl in {run} but got none; "
            "name a folder below .parity/runs, as printed by `parity gate`."
        )
    rows = [row for file in files for record in read(file) for row in _rows(record)]
    return pandas.DataFrame(rows)


def _rows(record: Record) -> list[dict[str, Any]]:
    common = record.to_dict()
    common["findings"] = len(record.findings)
    findings = record.findings or (Finding("", "", ""),)
    return [
        common
        | {
            "check": finding.check,
            "tensor": finding.tensor,
            "error": finding.error,
            "signature": finding.signature,
            "sentence": finding.sentence,
        }
        for finding in findings
    ]
