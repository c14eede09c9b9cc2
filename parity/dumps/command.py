"""``parity dumps``: are the rollouts and log-probs of two end-to-end runs the same?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exports import ExportFile, export_json
from ..git import Refused
from ..given import settings
from ..verdict import Exit

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA_VERSION = 1
LOGPROBS = ("old_logprob", "train_logprob")
COLUMNS = ("prompt_id", "sample", "position", "token_id", *LOGPROBS, "mask", "reward")
MEMORY = "500MB"  # what DuckDB may hold; with its own overhead the process stays below 1 GiB
THREADS = 2


@dataclass(frozen=True)
class Limit:
    """At most this share of the compared tokens may differ by more than ``above``."""

    column: str
    above: float
    share: float = 0.0

    def __post_init__(self) -> None:
        if self.column not in LOGPROBS:
            raise Refused(
                f"Expected a limit on {' or '.join(LOGPROBS)} but got one on {self.column!r}."
            )
        if not (_is_number(self.above) and self.above >= 0):
            raise Refused(f"Expected a limit above = 0 or more but got {self.above!r}.")
        if not (_is_number(self.share) and 0 <= self.share < 1):
            raise Refused(f"Expected a limit share from 0 to below 1 but got {self.share!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@click.command()
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("head", type=click.Path(path_type=Path))
@click.option(
    "--column", "columns", metavar="OURS=THEIRS", multiple=True, help="How the files call a column."
)
@click.option(
    "--limit",
    "limits",
    type=(click.Choice(LOGPROBS), float, float),
    metavar="COLUMN ABOVE SHARE",
    multiple=True,
    help="Fail if more than SHARE of the tokens differ by more than ABOVE; adds to the limits of "
    "[tool.parity.dumps].",
)
@click.option("--json", "json_file", type=ExportFile(), help="Write all of it here.")
def dumps(
    base: Path,
    head: Path,
    columns: tuple[str, ...],
    limits: tuple[tuple[str, float, float], ...],
    json_file: Path | None,
) -> int:
    """Compare the per-token records of two runs: Parquet or JSON lines, files or folders.

    Columns: prompt_id, sample, position, token_id, old_logprob, train_logprob and, if the run has
    them, mask and reward.  Exit code 1 if a token differs or a limit is passed.
    """
    from ..arms import project_root
    from .text import show

    project = project_root()
    wanted = configured_limits(project) + [Limit(*limit) for limit in limits]
    result = compare(base, head, project, _names(columns), wanted)
    if json_file is not None:
        export_json(json_file, result)
    show(result)
    return int(result["exit_code"])


def _names(columns: tuple[str, ...]) -> dict[str, str]:
    names: dict[str, str] = {}
    for ours, _, theirs in (text.partition("=") for text in columns):
        if names.setdefault(ours, theirs) != theirs:
            raise Refused(
                f"Expected one --column {ours} but got {names[ours]} and {theirs}; leave one out."
            )
        if ours not in COLUMNS or not theirs:
            raise Refused(
                f"Expected --column OURS=THEIRS with OURS among {', '.join(COLUMNS)} but got "
                f"{ours}={theirs}."
            )
    return names


def configured_limits(project: Path) -> list[Limit]:
    """The limits of ``[tool.parity.dumps]`` in the pyproject.toml of a folder; none by default."""
    file = project / "pyproject.toml"
    table = settings(project).get("dumps", {})
    try:
        unknown = set(table) - {"limits"}
        if unknown:
            raise TypeError(f"unknown {', '.join(sorted(unknown))}")
        return [Limit(**limit) for limit in table.get("limits", [])]
    except (AttributeError, TypeError) as error:
        raise Refused(
            'Expected [tool.parity.dumps] limits = [{ column = "train_logprob", above = 0.01, '
            f"share = 0.001 }}] in {file} but got {error}."
        ) from error


def compare(
    base: Path, head: Path, project: Path, names: dict[str, str], limits: list[Limit]
) -> dict[str, Any]:
    """Everything ``parity dumps`` has to say about two dumps, as plain JSON values.

    ``names`` says how the files call a column.  Temporary files go below ``project``.

    Raises:
        Refused: a dump that cannot be read or is not whole, or two that have no row in common.
    """
    from . import compare as measured
    from .verdict import conclusion

    with _database(project) as connection:
        arms = _load(connection, base, head, names)
        if not measured.join(connection):
            raise _nothing(base, head, "they have no prompt_id, sample and position in common")
        result: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "arms": {
                dump.arm: {"path": str(dump.path), "files": len(dump.files)}
                | measured.arm(connection, dump.arm)
                for dump in arms
            },
            "rollouts": measured.rollouts(connection),
            "logprobs": {name: measured.logprob(connection, name) for name in LOGPROBS},
            "limits": [
                asdict(limit) | measured.above(connection, limit.column, limit.above)
                for limit in limits
            ],
        }
        rewarded = all("reward" in dump.kinds for dump in arms)
        result["reward"] = measured.reward(connection) if rewarded else None
    return result | conclusion(result)


@contextmanager
def _database(project: Path) -> Iterator[DuckDBPyConnection]:
    """A private database on disk, so that dumps may be larger than memory."""
    import duckdb

    from ..arms import workspace

    with tempfile.TemporaryDirectory(prefix="dumps-", dir=workspace(project)) as folder:
        settings: dict[str, Any] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": f"{folder}/spill",
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,  # nothing is ever fetched
        }
        with duckdb.connect(f"{folder}/tokens.duckdb", config=settings) as connection:
            yield connection


def _load(
    connection: DuckDBPyConnection, base: Path, head: Path, names: dict[str, str]
) -> list[Any]:
    from . import read

    arms = []
    for name, path in (("base", base), ("head", head)):
        dump = read.inspect(connection, name, path, names)
        if dump is None:
            raise _nothing(base, head, f"{name} holds no row")
        arms.append(dump)
    shared = {file.resolve() for file in arms[0].files} & {file.resolve() for file in arms[1].files}
    if shared:
        raise _nothing(base, head, f"both read the file {min(shared)}")
    read.check_pair(*arms)
    read.load(connection, arms)
    return arms


def _nothing(base: Path, head: Path, reason: str) -> Refused:
    return Refused(
        f"Nothing compared between base {base} and head {head}: {reason}; name the dumps of two "
        "runs of the same prompts.",
        Exit.NOTHING_COMPARED,
    )
