"""``parity report``: a concluded run for people and for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .exports import ExportFile, export_text
from .git import Refused
from .verdict import Exit

if TYPE_CHECKING:
    from .runs import Run

FILE = ExportFile(dash=True)


@click.command()
@click.argument("run", required=False)
@click.option("--html", type=FILE, help="One page with everything, for a browser.")
@click.option("--markdown", type=FILE, help="For a comment on a pull request on GitHub.")
@click.option("--summary", type=FILE, help="Markdown for a job summary, which may be longer.")
@click.option("--junit", type=FILE, help="JUnit XML: a test case for each case.")
@click.option("--json", type=FILE, help="The whole report, in docs/schema/report.schema.json.")
def report(run: str | None, **files: Path | None) -> int:
    """Render a gate that has come to its end; RUN is its id or folder [default: the newest].

    FILE may be - for standard output.  Without any, the report goes to the terminal.
    """
    from .reports import render

    _refuse_one_file(files)
    concluded = _find(run)
    for name, file in files.items():
        if file is not None:
            _write(file, render.as_text(concluded, name))
    if not any(files.values()):
        render.to_terminal(concluded)
    return Exit.OK


def _refuse_one_file(files: Mapping[str, Path | None]) -> None:
    seen: dict[Path, str] = {}
    for name, file in files.items():
        if file is not None and (other := seen.setdefault(file.absolute(), name)) != name:
            raise click.UsageError(
                f"Expected a file for each format but got {file} for --{other} and --{name}; "
                "name two."
            )


def _write(file: Path, text: str) -> None:
    if str(file) != "-":
        export_text(file, text)
        return
    with click.open_file("-", "w", encoding="utf-8") as output:
        output.write(text)


def _say_which(run: Run, newer: list[Run]) -> None:
    """On stderr: which run is shown, and which gates began later and have nothing to show."""
    from .reports.plain import plain
    from .reports.terminal import title

    click.echo(plain(f"Run {title(run)}"), err=True)
    for unfinished in newer:
        told = f"Not the newer {title(unfinished)}, which was stopped before its end or still runs."
        click.echo(plain(told), err=True)


def _find(name: str | None) -> Run:
    from .arms import project_root, workspace
    from .runs import Run, all_runs

    if name is not None and Path(name).is_dir():
        return Run(Path(name))
    newer: list[Run] = []
    for run in all_runs(workspace(project_root())):
        if name == run.id or (name is None and run.document("result")):
            _say_which(run, newer)
            return run
        newer += [run] if run.document("run").get("kind") == "gate" else []
    raise Refused(
        f"Expected {'a run ' + repr(name) if name else 'a concluded run'} in .parity/runs but "
        "found none; run `parity gate`, or name the folder of a run."
    )
