"""Per-token dumps as files: which an arm has, what columns they hold, and loading them checked.

A dump holds one row per token.  Its values are checked, never repaired: a row that lacks a key, or
whose token is no integer, refuses the whole comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..git import Refused
from ..verdict import Exit

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

IDS = ("prompt_id", "sample")
INTEGERS = ("position", "token_id")
LOGPROBS = ("old_logprob", "train_logprob")
OPTIONAL = ("mask", "reward")
COLUMNS = (*IDS, *INTEGERS, *LOGPROBS, *OPTIONAL)
FORMATS = {
    ".parquet": "Parquet",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
}
LARGEST = 2**53  # up to here every integer is a float64, which JSON numbers are read as

# Kinds of value by column; "null" is the kind of a column whose first value says nothing.
ACCEPTED = {
    **dict.fromkeys(IDS, ("integer", "text")),
    **dict.fromkeys(INTEGERS, ("integer", "number")),
    **dict.fromkeys((*LOGPROBS, "reward"), ("integer", "number", "null")),
    "mask": ("boolean", "integer", "number"),
}


@dataclass(frozen=True)
class Dump:
    """The files of one arm, all of one format, and the kind of every column they share.

    ``names`` says how the files call a column; ``kinds`` has the columns that are there.
    """

    arm: str
    path: Path
    files: tuple[Path, ...]
    names: dict[str, str]
    kinds: dict[str, str]

    @property
    def is_parquet(self) -> bool:
        """Whether the files are Parquet, else they are JSON lines."""
        return self.files[0].suffix == ".parquet"


def inspect(
    connection: DuckDBPyConnection, arm: str, path: Path, names: dict[str, str]
) -> Dump | None:
    """The dump at a path, its columns checked file by file; None if no file holds a row.

    Raises:
        Refused: no such file, another format, a column missing or of the wrong kind.
    """
    files = _files(arm, path)
    if len({FORMATS[file.suffix] for file in files}) > 1:
        raise Refused(
            f"Expected files of one format at {arm} {path} but got Parquet and JSON lines; "
            "keep one of the two."
        )
    kinds = {file: _kinds(connection, file) for file in files}
    filled = {file: found for file, found in kinds.items() if found is not None}
    if not filled:
        return None
    first, *others = [_columns(arm, file, found, names) for file, found in filled.items()]
    for file, other in zip(list(filled)[1:], others, strict=True):
        _alike(f"{arm} {file}", other, f"in {next(iter(filled)).name}", first)
    return Dump(arm, path, tuple(filled), names, first)


def check_pair(base: Dump, head: Dump) -> None:
    """Refuse two dumps whose keys are of different kinds, or of which one alone has a mask."""
    _alike(f"head {head.path}", _shared(head), "in base", _shared(base))


def _shared(dump: Dump) -> dict[str, str]:
    return {column: kind for column, kind in dump.kinds.items() if column != "reward"}


def _alike(where: str, kinds: dict[str, str], other: str, expected: dict[str, str]) -> None:
    """Refuse columns that are missing on one side, and ids of two kinds: 7 is not "7"."""
    for column in COLUMNS:
        mine, theirs = kinds.get(column), expected.get(column)
        if (mine is None) != (theirs is None) or (column in IDS and mine != theirs):
            raise Refused(
                f"Expected {column} in {where} to be {theirs or 'absent'} as {other} but it is "
                f"{mine or 'absent'}; write every file with the same columns."
            )


def _files(arm: str, path: Path) -> tuple[Path, ...]:
    """One file, or every file of a folder and its folders; hidden and ``_`` names are passed over.

    A folder with any other file is refused: a shard that is not read is not compared.
    """
    if not path.exists():
        raise Refused(f"Expected a file or folder at {arm} {path} but there is none.")
    files = (path,) if path.is_file() else tuple(_below(path))
    for file in files:
        if file.suffix not in FORMATS:
            raise Refused(
                f"Expected Parquet (.parquet) or JSON lines (.jsonl) at {arm} {path} but got "
                f"{file.name}; unpack it, or move it out of the folder."
            )
    if not files:
        raise Refused(f"Expected files at {arm} {path} but the folder holds none.")
    return files


def _below(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return sorted(
        file
        for file in files
        if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    )


def _kinds(connection: DuckDBPyConnection, file: Path) -> dict[str, str] | None:
    """The kind of each column of one file; None for a file without rows."""
    try:
        if file.suffix == ".parquet":
            return _parquet_kinds(connection, file)
        return _json_kinds(file)
    except (OSError, ValueError) as error:
        raise Refused(_unreadable(file, error)) from error


def _parquet_kinds(connection: DuckDBPyConnection, file: Path) -> dict[str, str] | None:
    source = f"read_parquet({_literal([file])})"
    rows = run(connection, f"SELECT * FROM {source} LIMIT 1", file).fetchall()
    described = run(connection, f"DESCRIBE SELECT * FROM {source}", file).fetchall()
    return {name: _parquet_kind(kind) for name, kind, *_ in described} if rows else None


def _parquet_kind(kind: str) -> str:
    if kind.endswith("INT") or kind == "INTEGER" or kind == "UINTEGER":
        return "integer"
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        return "number"
    return {"BOOLEAN": "boolean", "VARCHAR": "text", "UUID": "text", '"NULL"': "null"}.get(
        kind, kind
    )


def _json_kinds(file: Path) -> dict[str, str] | None:
    with file.open(encoding="utf-8") as lines:
        line = next((line for line in lines if line.strip()), None)
    if line is None:
        return None
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"line 1 holds {type(row).__name__}, not an object")
    return {name: _json_kind(value) for name, value in row.items()}


def _json_kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "text", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _columns(arm: str, file: Path, kinds: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    """The kinds of our columns in one file; Refused where one is missing or wrong."""
    found = {}
    for column in COLUMNS:
        name = names.get(column, column)
        if name in kinds:
            found[column] = kinds[name]
        elif column not in OPTIONAL or column in names:
            raise Refused(
                f"Expected a column {name!r} in {arm} {file} but it has {', '.join(kinds)}; "
                f"say how it is called with --column {column}=NAME."
            )
    for column, kind in found.items():
        if kind not in ACCEPTED[column]:
            raise Refused(
                f"Expected {column} in {arm} {file} to be {' or '.join(ACCEPTED[column])} but it "
                f"is {kind}; write it so, or name another column with --column {column}=NAME."
            )
    return found


def load(connection: DuckDBPyConnection, dumps: Iterable[Dump]) -> None:
    """Copy each dump into the table named like its arm, its samples numbered across the arms.

    An arm's table has ``id`` in place of prompt_id and sample, which ``names`` holds once each.

    Raises:
        Refused: a file that cannot be read, a row without a key or token, a key that repeats.
    """
    dumps = list(dumps)
    for dump in dumps:
        values = ", ".join(f"{_value(dump, column)} AS {column}" for column in COLUMNS)
        copy = f"CREATE TABLE rows_{dump.arm} AS SELECT {values} FROM {_source(dump)}"
        run(connection, copy, dump.path)
        _check_whole(connection, dump)
        _check_ids(connection, dump)
    pairs = " UNION ".join(f"SELECT prompt_id, sample FROM samples_{dump.arm}" for dump in dumps)
    run(connection, f"CREATE TABLE names AS SELECT row_number() OVER () AS id, * FROM ({pairs})")
    for dump in dumps:
        run(
            connection,
            f"CREATE VIEW {dump.arm} AS SELECT id, rows_{dump.arm}.* "
            f"FROM rows_{dump.arm} JOIN names USING (prompt_id, sample)",
        )
        _check_unique(connection, dump)


def _source(dump: Dump) -> str:
    files = _literal(dump.files)
    if dump.is_parquet:
        return f"read_parquet({files}, union_by_name=true)"
    kinds = {
        dump.names.get(column, column): "JSON" if column in IDS else "DOUBLE"
        for column in dump.kinds
    }
    columns = ", ".join(f"{_quoted(name)}: '{kind}'" for name, kind in kinds.items())
    return f"read_json({files}, format='newline_delimited', columns={{{columns}}})"


def _value(dump: Dump, column: str) -> str:
    """SQL for one column; NULL where the value is not of the kind that the column must be.

    Ids become JSON text, in which 7 and "7" are two things whatever the format of the file.
    """
    if column not in dump.kinds:
        return "true" if column == "mask" else "NULL::DOUBLE"
    name = _quoted(dump.names.get(column, column))
    if column in IDS:
        text = dump.is_parquet and dump.kinds[column] == "text"
        return f"to_json({name})::VARCHAR" if text else f"{name}::VARCHAR"
    if column in INTEGERS:
        least = 0 if column == "position" else -LARGEST
        whole = f"{name} = floor({name}) AND {name} BETWEEN {least} AND {LARGEST}"
        return f"CASE WHEN {whole} THEN {name}::BIGINT END"
    if column == "mask":
        return f"CASE WHEN isfinite({name}::DOUBLE) THEN {name}::DOUBLE <> 0 END"
    return f"{name}::DOUBLE"


def _check_whole(connection: DuckDBPyConnection, dump: Dump) -> None:
    """Refuse rows in which a key, the token or the mask is missing or of another kind."""
    columns = (*IDS, *INTEGERS, "mask")
    gaps = ", ".join(f"count(*) - count({column})" for column in columns)
    found = run(connection, f"SELECT {gaps} FROM rows_{dump.arm}").fetchall()[0]
    for column, count in zip(columns, found, strict=True):
        if count:
            raise _not_whole(dump, column, f"{count:,} rows")


def _check_ids(connection: DuckDBPyConnection, dump: Dump) -> None:
    """Refuse ids of another kind than the first; only JSON lines can hold such a mixture."""
    table = f"samples_{dump.arm}"
    distinct = f"SELECT DISTINCT prompt_id, sample FROM rows_{dump.arm}"
    run(connection, f"CREATE TABLE {table} AS {distinct}")
    for column in IDS:
        types = "'VARCHAR'" if dump.kinds[column] == "text" else "'BIGINT', 'UBIGINT'"
        other = f"SELECT count(*) FROM {table} WHERE json_type({column}) NOT IN ({types})"
        count = run(connection, other).fetchall()[0][0]
        if count:
            raise _not_whole(dump, column, f"{count:,} samples")


def _not_whole(dump: Dump, column: str, where: str) -> Refused:
    kinds = {"position": "an integer of at least 0", "token_id": "an integer"}
    kind = kinds.get(column, f"{dump.kinds.get(column)} as in its first row")
    return Refused(
        f"Expected {column} in {dump.arm} {dump.path} to be {kind} but {where} hold nothing or "
        "something else; leave them out or mend them."
    )


def _check_unique(connection: DuckDBPyConnection, dump: Dump) -> None:
    repeated = f"SELECT id, position FROM {dump.arm} GROUP BY id, position HAVING count(*) > 1"
    found = run(
        connection,
        "SELECT count(*) OVER (), prompt_id->>'$', sample->>'$', position "
        f"FROM ({repeated}) JOIN names USING (id) LIMIT 1",
    ).fetchall()
    for count, prompt, sample, position in found:
        raise Refused(
            f"Expected one row per prompt_id, sample and position in {dump.arm} {dump.path} but "
            f"{count:,} keys repeat, e.g. prompt {prompt}, sample {sample}, position {position}; "
            "if these are several steps of a run, compare them one at a time."
        )


def run(
    connection: DuckDBPyConnection, query: str, where: object = "base and head"
) -> DuckDBPyConnection:
    """Run a query; Refused, with the first line of the reason, where that fails."""
    import duckdb

    try:
        return connection.execute(query)
    except duckdb.OutOfMemoryException as error:
        raise Refused(_unreadable(where, error), Exit.FAULT) from error
    except (duckdb.IOException, duckdb.DataError, duckdb.InvalidInputException) as error:
        raise Refused(_unreadable(where, error)) from error
    except RuntimeError as error:  # what DuckDB makes of a signal
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


def _unreadable(where: object, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0].removesuffix(".")
    return f"Expected to read {where} whole but that fails: {reason}."


def _literal(files: tuple[Path, ...] | list[Path]) -> str:
    """A list of paths for SQL, in which no name acts as a pattern."""
    special = str.maketrans({"[": "[[]", "*": "[*]", "?": "[?]", "'": "''"})
    return "[" + ", ".join(f"'{str(file).translate(special)}'" for file in files) + "]"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
