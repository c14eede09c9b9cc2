"""``parity doctor``: what a machine lacks, row by row, and what to do about it.

``missing`` is what the tiers without a GPU need, and so every required check; ``NOT_RUN`` is a tier
or a report that this machine cannot do and that nothing else depends on.  Only ``missing`` changes
the exit code.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from .arms import project_root, workspace
from .exports import ExportFile, export_json
from .git import GitError, Refused, git
from .verdict import Exit

SCHEMA_VERSION = 1
OK, MISSING, NOT_RUN = "ok", "missing", "NOT_RUN"
PYTHON, TORCH, TRITON = (3, 11), (2, 9), (3, 5)  # as pyproject.toml has them
REPAIRED = (3, 7)  # the newest Triton that the CPU tier was tested with
FREE = 2**30  # bytes; the wheels of two releases and the runs of a day are below 2^27
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True)
class Row:
    """One thing that was looked for: what there is, and what to do where that is not enough."""

    name: str
    status: str
    found: str
    todo: str = ""


@click.command()
@click.option("--json", "file", type=ExportFile(), help="Write the rows here too.")
def doctor(file: Path | None) -> int:
    """Say what this machine lacks, and what to do about it.

    Exit code 10 if something is missing that the tiers without a GPU need, else 0.
    """
    from .reports.plain import plain

    rows = []
    for row in examine(project_root()):
        rows.append(row)
        click.echo(plain(f"{row.status:8} {row.name:9} {row.found}") + _advice(row))
    if file is not None:
        document = {"schema_version": SCHEMA_VERSION, "rows": [asdict(row) for row in rows]}
        export_json(file, document)
    return Exit.INCONCLUSIVE if any(row.status == MISSING for row in rows) else Exit.OK


def _advice(row: Row) -> str:
    return f"; {row.todo}" if row.todo else ""


def examine(project: Path) -> Iterator[Row]:
    """Every row, in the order in which one depends on the other."""
    yield _at_least("python", sys.version.split()[0], PYTHON, "name one, as in `make PYTHON=...`")
    yield _package("torch", TORCH)
    yield _triton(_package("triton", TRITON))
    yield _assembler()
    yield _gpu()
    yield _git(project)
    yield _megatron(project)
    yield _browser()
    yield from _room(project)


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version; what follows them (rc1, +cu130) counts for nothing."""
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _at_least(name: str, found: str, lowest: tuple[int, ...], todo: str) -> Row:
    if numbers(found) >= lowest:
        return Row(name, OK, found)
    return Row(name, MISSING, f"{found}, below {'.'.join(map(str, lowest))}", todo)


def _package(name: str, lowest: tuple[int, ...]) -> Row:
    todo = "run `make test` once, or `pip install -c constraints.txt -e .`"
    try:
        found = str(importlib.import_module(name).__version__)
    except (ImportError, OSError) as error:  # OSError: a shared library of it is missing
        return Row(name, MISSING, f"cannot be imported: {error}", todo)
    return _at_least(name, found, lowest, todo)


def _triton(row: Row) -> Row:
    newer = row.status == OK and numbers(row.found)[:2] > REPAIRED
    todo = "newer than 3.7, the last that the CPU tier was tested with" if newer else ""
    return Row(row.name, row.status, row.found, row.todo or todo)


def _assembler() -> Row:
    """Triton's own ptxas and cuobjdump, which the codegen tier runs."""
    try:
        nvidia = importlib.import_module("triton.knobs").nvidia
        found = f"{nvidia.ptxas.version}, cuobjdump {nvidia.cuobjdump.version}"
    except Exception as error:  # noqa: BLE001 - whatever Triton raises, there is no assembler
        return Row("ptxas", MISSING, f"cannot be run: {error}", "install the wheel of triton again")
    return Row("ptxas", OK, found)


def _gpu() -> Row:
    """A driver, a GPU under the user's mask, and a torch that can use it."""
    from . import leases  # what renders reports needs no NVML

    driver, uuids = leases.driver(), leases.visible_gpus()
    found = f"driver {driver}, {len(uuids)} under {leases.MASK}={leases.OUTER or ''}"
    if driver is None:
        return Row("gpu", NOT_RUN, "no NVIDIA driver answers", "only the GPU tier needs one")
    if not uuids:
        return Row("gpu", NOT_RUN, found, "name GPUs by UUID, as `nvidia-smi -L` has them")
    try:
        usable = bool(importlib.import_module("torch").cuda.is_available())
    except (ImportError, OSError):
        usable = False
    todo = "" if usable else "torch cannot use it: install the CUDA build that fits the driver"
    return Row("gpu", OK if usable else NOT_RUN, found, todo)


def _git(project: Path) -> Row:
    try:
        found = git(project, "--version")
        git(project, "rev-parse", "--show-toplevel")
    except Refused:
        return Row("git", MISSING, "none on PATH", "install it, or gate folders with --base-root")
    except GitError:
        return Row(
            "git", OK, f"{found}, {project} is no repository", "gate folders, or run git init"
        )
    return Row("git", OK, found)


def _megatron(project: Path) -> Row:
    roots = sorted(path.name for path in (project / ".parity" / "megatron").glob("*/"))
    if roots:
        return Row("megatron", OK, f"{', '.join(roots)} in .parity/megatron")
    return Row("megatron", NOT_RUN, "no release here", "`make gate` fetches two")


def _browser() -> Row:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path:
        return Row("chromium", OK, path)
    return Row("chromium", NOT_RUN, "none on PATH", "only the tests of the HTML page need one")


def _room(project: Path) -> Iterator[Row]:
    try:
        folder = workspace(project)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"parity")
            file.flush()
            os.fsync(file.fileno())
    except Refused as refused:
        yield Row("write", MISSING, str(refused))
    except OSError as error:
        why = f"cannot write in {project / '.parity'}: {error.strerror}"
        yield Row("write", MISSING, why, "free some space")
    else:
        yield Row("write", OK, str(folder))
    free = shutil.disk_usage(project).free
    status = OK if free >= FREE else MISSING
    yield Row("disk", status, f"{free / 2**30:.1f} GiB free", "" if free >= FREE else "free 1 GiB")
