"""pytest plugin of ``parity triage``: a journal of the session that survives a crash.

It runs in the environment of the suite, from a copy outside ``parity``, so that the ``parity`` on
the path stays the arm's own: it needs pytest and nothing of this package.  A line is written when a
test starts and when it has reported; SIGTERM adds the stack to a file of its own and ends the
process as it always does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
LOCAL = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
PATIENCE = 10.0  # seconds for the other ranks to end: launchers stop them when one has failed


def _number(names: tuple[str, ...]) -> int | None:
    found = (os.environ[name] for name in names if os.environ.get(name, "").isdecimal())
    return next(map(int, found), None)


class Journal:
    """The files of one pytest process in the folder of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stem = folder / f"{os.getpid()}"
        self.lines = self.stem.with_suffix(".journal").open("a", encoding="utf-8")
        self.stack = self.stem.with_suffix(".stack").open("w", encoding="utf-8")
        self.write("SessionStart", rank=_number(RANK), world=_number(WORLD) or 1)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGTERM, file=self.stack, all_threads=True, chain=True)

    def write(self, kind: str, **fields: Any) -> None:
        """Add one line and hand it to the system: a crash of this process cannot lose it."""
        self.lines.write(json.dumps({"$report_type": kind} | fields) + "\n")
        self.lines.flush()

    def report(self, kind: str, report: Any, **fields: Any) -> None:
        """Add a line for a report of a test or of a collector."""
        crash = getattr(report.longrepr, "reprcrash", None)
        fields |= {"nodeid": report.nodeid, "outcome": report.outcome}
        if report.outcome == "failed":
            fields |= {"message": getattr(crash, "message", ""), "longrepr": report.longreprtext}
        self.write(kind, **fields)

    def end(self, status: int) -> None:
        """The last line; then wait for the ranks beside this one."""
        self.write("SessionFinish", exitstatus=status)
        self.stem.with_suffix(".ended").touch()
        until = time.monotonic() + PATIENCE
        beside = _number(LOCAL) or 1
        while len(list(self.folder.glob("*.ended"))) < beside and time.monotonic() < until:
            time.sleep(0.02)


# Taken from the environment at once: a pytest that a test starts is none of ours.
_folder = os.environ.pop("PARITY_TRIAGE_FOLDER", "")
_only = os.environ.pop("PARITY_TRIAGE_ONLY", "")
_journal = Journal(Path(_folder)) if _folder else None
_ASKED = pytest.StashKey[tuple[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Remember the folder and the tests asked for; a worker of xdist hears of them from us."""
    given = getattr(config, "workerinput", {}).get("parity_triage")
    config.stash[_ASKED] = given or (_folder, _only)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker what was asked; its reports come to this process anyway."""
    node.workerinput["parity_triage"] = node.config.stash[_ASKED]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests that were asked for, if any were."""
    _, only = config.stash[_ASKED]
    if only:
        wanted = set(json.loads(Path(only).read_text("utf-8")))
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write which tests are to come."""
    _collected(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Write which tests are to come where only the workers know."""
    _collected(node.config, ids)


def _collected(config: pytest.Config, ids: list[str]) -> None:
    if _journal:
        _journal.write("Collected", ids=ids, rootdir=str(config.rootpath))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write which test starts."""
    if _journal:
        _journal.write("TestStart", nodeid=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what a phase of a test reported."""
    if _journal and not (report.outcome == "passed" and report.when == "setup"):
        _journal.report("TestReport", report, when=report.when)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write what could not be collected."""
    if _journal and report.outcome == "failed":
        _journal.report("CollectReport", report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the files this process imported, and the end of the session."""
    folder, _ = session.config.stash[_ASKED]
    if folder:
        files = {str(getattr(module, "__file__", "")) for module in [*sys.modules.values()]}
        text = json.dumps(sorted(files))
        part = Path(folder, f"{os.getpid()}.part")  # whoever is killed meanwhile leaves no half
        part.write_text(text, encoding="utf-8")
        part.replace(part.with_suffix(".imports"))
    if _journal:
        _journal.end(int(exitstatus))
