"""The history folder: one immutable Parquet file for each night and machine, written by many.

A file is written under another name, flushed to the disk and renamed, so that it is whole or not
there.  Nobody ever writes into a file of somebody else.  Columns that are missing were added later
than the file and get their default; columns that are not known are passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .night import KINDS, SCHEMA_VERSION, Night, Row

if TYPE_CHECKING:
    import pandas
    from duckdb import DuckDBPyConnection

_TYPES = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE"}
_HEADER = {item.name: str(item.type) for item in fields(Night) if item.name != "rows"}
_ROW = {item.name: str(item.type) for kind in KINDS.values() for item in fields(kind)}
COLUMNS = {"schema_version": "int", **_HEADER, "kind": "str", **_ROW}


@dataclass(frozen=True)
class History:
    """The nights of a folder, and a sentence for every file that was passed over."""

    nights: tuple[Night, ...]
    skipped: tuple[str, ...]

    def before(self, night: Night) -> list[Night]:
        """The nights that can be compared with this one, the oldest first, itself left out."""
        found = (n for n in self.nights if n.series == night.series and n.order < night.order)
        return sorted(found, key=lambda n: n.order)

    def next_number(self, machine: str) -> int:
        """The number of the next night of a machine."""
        return 1 + max((n.number for n in self.nights if n.machine == machine), default=0)


def write(folder: Path, night: Night) -> Path:
    """Add a night; the name of the file holds its id and machine and is never used twice."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{night.id}-{slug(night.machine)}.parquet"
    temporary = folder / f".{target.name}.{os.getpid()}"
    header = {"schema_version": SCHEMA_VERSION} | {name: getattr(night, name) for name in _HEADER}
    rows = [header | {"kind": _kind(row)} | asdict(row) for row in night.rows]
    with _database() as connection:
        columns = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in COLUMNS.items())
        connection.execute(f"CREATE TABLE night ({columns})")
        marks = ", ".join("?" for _ in COLUMNS)
        values = [[row.get(name) for name in COLUMNS] for row in rows]
        connection.executemany(f"INSERT INTO night VALUES ({marks})", values)
        connection.execute("COPY night TO ? (FORMAT parquet)", [str(temporary)])
    _flush(temporary)
    os.link(temporary, target)  # unlike a rename, refuses to replace
    temporary.unlink()
    _flush(folder)
    return target


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def slug(text: str) -> str:
    """A machine's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "machine"


def _kind(row: Row) -> str:
    return next(name for name, kind in KINDS.items() if isinstance(row, kind))


def _database() -> DuckDBPyConnection:
    import duckdb

    return duckdb.connect(config={"threads": 1})


def read(folder: Path) -> History:
    """Every night of a folder; a file that cannot be read is named in ``skipped``."""
    nights: dict[str, Night] = {}
    skipped = []
    for file in sorted(folder.glob("*.parquet")):
        try:
            night = _night(_table(file))
            if night.id in nights:
                raise ValueError(f"it holds night {night.id} a second time")
            nights[night.id] = night
        except ValueError as error:
            skipped.append(f"{file.name} was passed over: {error}.")
    return History(tuple(nights.values()), tuple(skipped))


def _table(file: Path) -> list[dict[str, Any]]:
    import duckdb

    literal = re.sub(r"([\[*?])", r"[\1]", str(file))  # DuckDB takes a path for a pattern
    try:
        with _database() as connection:
            found = connection.execute("SELECT * FROM read_parquet(?)", [literal])
            names = [column[0] for column in found.description]
            return [dict(zip(names, values, strict=True)) for values in found.fetchall()]
    except duckdb.Error as error:
        reason = " ".join(str(error).split("\n")[0].replace(str(file), "it").split())
        raise ValueError(f"it is damaged ({reason.rstrip('.')})") from error


def _night(table: list[dict[str, Any]]) -> Night:
    if not table:
        raise ValueError("it holds no row")
    version = table[0].get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise ValueError("it is no night of parity")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"it has schema version {version}, and this parity reads up to {SCHEMA_VERSION}"
        )
    header = _fitting(Night, table[0])
    if any(_fitting(Night, row) != header for row in table):
        raise ValueError("it holds more than one night")
    return Night(**header, rows=tuple(_rows(table)))


def _rows(table: list[dict[str, Any]]) -> Iterator[Row]:
    for row in table:
        kind = KINDS.get(row.get("kind", ""))
        if kind is not None:  # another kind comes from a newer parity
            yield kind(**_fitting(kind, row))


def _fitting(kind: type[Any], row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a kind of row, each of its type; a missing one has its default."""
    found: dict[str, Any] = {}
    for item in fields(kind):
        value = row.get(item.name)
        if type(value).__name__ == str(item.type):
            found[item.name] = value
        elif value is not None or (item.default is MISSING and item.name in COLUMNS):
            raise ValueError(f"its {item.name} is {value!r}, not {item.type}")
    return found


def load(folder: str | os.PathLike[str]) -> pandas.DataFrame:
    """The history as a pandas DataFrame, one row per fact; ``kind`` says what it is about.

    Columns: those of the files (``docs/nightly.md``).  Files that cannot be read are left out, as
    ``parity history`` says by name.
    """
    import pandas

    rows = [
        {name: getattr(night, name) for name in _HEADER} | {"kind": _kind(row)} | asdict(row)
        for night in read(Path(folder)).nights
        for row in night.rows
    ]
    return pandas.DataFrame(rows, columns=[name for name in COLUMNS if name != "schema_version"])
