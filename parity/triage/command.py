"""``parity triage``: whose fault are the failures of any pytest suite, the change's or base's?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..exports import ExportFile, export_json
from ..options import refuse_idle
from .arms import perform, trees
from .cause import Row, counts, exit_code
from .classify import classify
from .junit import read_junit
from .log import outcomes, read_log
from .results import Outcome, Results, merge

SCHEMA_VERSION = 1
DEADLINE = 3600.0


class _WithCommand(click.Command):
    """Everything behind ``--`` is a command and none of our options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["parity.command"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_WithCommand)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[BASE HEAD]")
@click.option("--repo", type=click.Path(path_type=Path), default=".", help="Checkout of the code.")
@click.option("--base", metavar="REF", help="Compare with this revision [default: merge-base].")
@click.option("--head", metavar="REF", help="The change [default: the files as they are now].")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=DEADLINE,
    show_default=True,
    help="Seconds that the command may take in each arm.",
)
@click.option("--json", "target", type=ExportFile(), help="Write the verdicts here.")
@click.pass_context
def triage(
    ctx: click.Context,
    files: tuple[Path, ...],
    repo: Path,
    base: str | None,
    head: str | None,
    deadline: float,
    target: Path | None,
) -> int:
    """Tell which failures of a pytest suite a change causes, as Markdown for a pull request.

    BASE and HEAD are JUnit XML files, report logs, or folders of them, one file for each rank.
    With `-- COMMAND` instead, the command runs pytest on both revisions:

        parity triage --base main -- torchrun --nproc-per-node=4 -m pytest tests/unit
    """
    command: list[str] | None = ctx.meta.get("parity.command")
    if command is None:
        if len(files) != 2 or base or head:
            raise click.UsageError(
                "Expected two result files, or `-- COMMAND` with --base and --head, but got "
                f"{len(files)} files; see `parity triage --help`."
            )
        refuse_idle("beside two result files", "repo", "deadline")
        return _conclude(read(files[0]), read(files[1]), {}, target)
    if files or not command:
        raise click.UsageError(
            "Expected either two result files or a command behind `--` but got "
            f"{'both' if files else 'no command'}; see `parity triage --help`."
        )
    with trees(repo, base, head) as arms:
        before, after, cross = perform(arms, command, deadline)
    return _conclude(before, after, cross, target)


def _conclude(base: Results, head: Results, cross: Results, target: Path | None) -> int:
    from .table import markdown

    rows = classify(base, head, cross)
    try:
        if target:
            export_json(target, document(rows))
    finally:  # the command may have run for an hour
        click.echo(markdown(base, head, rows))
    return int(exit_code(rows))


def document(rows: list[Row]) -> dict[str, Any]:
    """The content of the JSON file."""
    failures = [
        {
            "id": row.id,
            "verdict": str(row.verdict),
            "signature": row.signature,
            "evidence": row.evidence,
        }
        for row in rows
    ]
    return {"schema_version": SCHEMA_VERSION, "counts": counts(rows), "failures": failures}


def read(path: Path) -> Results:
    """The outcomes in a result file, or in all result files of a folder.

    Raises:
        ValueError: no file, or one that is neither JUnit XML nor a report log.
    """
    if path.is_dir():
        files = sorted(file for pattern in ("*.xml", "*.jsonl") for file in path.glob(pattern))
        if not files:
            raise ValueError(f"Expected *.xml or *.jsonl files in {path} but it holds none.")
        return merge(outcome for file in files for outcome in _read_file(file))
    return merge(_read_file(path))


def _read_file(path: Path) -> list[Outcome]:
    try:
        with path.open("rb") as file:
            begin = file.read(4096)
    except OSError as error:
        raise ValueError(
            f"Expected a result file at {path} but the system says: {error.strerror}; "
            "write one with pytest --junitxml."
        ) from error
    first = begin.decode("utf-8-sig", errors="replace").lstrip()[:1]
    if first == "{":
        return outcomes(read_log(path))
    if first == "<" or begin.startswith((b"\xff\xfe", b"\xfe\xff")):
        return read_junit(path)
    raise ValueError(
        f"Expected JUnit XML or a report log in {path} but "
        f"{'it is empty' if not begin else 'it is neither'}; write one with pytest --junitxml."
    )
