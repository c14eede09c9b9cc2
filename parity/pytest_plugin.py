"""pytest plugin: cases as parameters, findings as failures, records below ``.parity/runs``.

Loaded by ``pytest_plugins = ["parity.pytest_plugin"]`` in a conftest.py or with
``-p parity.pytest_plugin``.  A test asks for ``parity_case`` (one planned case of each op, or of
the ops its ``parity_op`` mark names) and hands it to ``parity_check``; a Hypothesis test draws from
:func:`parity.strategies.cases` and does the same.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, currently_in_test_context, settings

from . import leases
from .arms import workspace
from .case import Case
from .catalog import configured, is_of_others, resolve
from .corpus import kept
from .generate import plan
from .interpreter import prepare
from .profiles import PROFILES, Profile
from .pytest_summary import lines
from .record import Record
from .runs import Run
from .shrink import Budget, shrink, summary
from .spec import OpSpec

SHRINK_RUNS = 150


OPTIONS = {
    "profile": ("dev", f"how much to search: {', '.join(PROFILES)}"),
    "seed": ("0", "whole number that all planned cases follow from"),
    "ops": ("", 'contracts to test: "package.module:OPS" (default: [tool.parity] ops)'),
}


class CaseFailed(AssertionError):
    """A case with findings: one sentence, the minimal case, and how to run it again."""


@dataclass(frozen=True)
class Session:
    """What every test of a session shares."""

    project: Path
    run: Run
    worker: str
    ops: str | None
    seed: int
    profile: Profile
    of_others: bool = False
    checked: list[str] = field(default_factory=list, repr=False)
    failed: list[str] = field(default_factory=list, repr=False)
    gaps: list[str] = field(default_factory=list, repr=False)

    @cached_property
    def specs(self) -> dict[str, OpSpec]:
        """The contracts under test, by op name."""
        return resolve(self.ops)

    def cases(self, spec: OpSpec) -> list[Case]:
        """The kept cases of an op, if it is the project's own, then the planned ones."""
        before = [] if self.of_others else kept(self.project, spec)
        planned = plan(spec, self.profile.planned, self.seed)
        return list({case.id: case for case in [*before, *planned]}.values())

    def check(self, case: Case) -> None:
        """Run a case; raises CaseFailed if it has findings, if the op lacks what it promises or if
        the contract cannot be judged.

        What could not be checked of one that passes is added to ``gaps``.
        """
        if not self.checked:
            self._open()
        self.checked.append(case.id)
        self.run.save_case(case)
        record = self._run(case)
        self._add(record)
        if record.status == "passed":
            self.gaps.extend(record.gaps())
            return
        self.failed.append(case.id)
        if record.status == "infrastructure":
            raise CaseFailed(record.reason)
        if record.status == "unsupported":
            raise CaseFailed(f"Expected what the contract promises but got: {record.reason}")
        raise CaseFailed(_message(*self._smallest(case, record)))

    def _open(self) -> None:
        workspace(self.project)  # tells git to ignore it
        self.run.open()
        self.run.write("run", {"kind": "pytest", "ops": self.ops})

    def _run(self, case: Case) -> Record:
        from .runner import run_case

        try:
            return run_case(self.specs[case.op], case)
        except ValueError as error:  # the contract cannot be judged, and the sentence says why
            return Record(case.id, case.op, "head", "infrastructure", reason=str(error))

    def _add(self, record: Record) -> None:
        """Once a case has failed, Hypothesis runs smaller ones and those again: probes, too."""
        shrinking = self.failed and currently_in_test_context()
        (self.run.add_probe if shrinking else self.run.add)(record, by=self.worker)

    def _smallest(self, case: Case, record: Record) -> tuple[Case, Record]:
        """The simplest case that fails alike, with its record, which are kept for a replay."""
        family, records = record.findings[0].family, {case.id: record}

        def still_fails(smaller: Case) -> bool:
            records[smaller.id] = self._run(smaller)
            return any(f.family == family for f in records[smaller.id].findings)

        budget = Budget(runs=SHRINK_RUNS, seconds=60)
        smallest = shrink(self.specs[case.op], case, still_fails, budget)
        if smallest.id != case.id:
            self.run.save_case(smallest)
            self.run.add_probe(records[smallest.id], by=self.worker)
        return smallest, records[smallest.id]


def _message(case: Case, record: Record) -> str:
    sentences = [finding.sentence for finding in record.findings]
    lines = [*sentences[:1], *(f"also: {sentence}" for sentence in sentences[1:4])]
    lines += [f"minimal case: {summary(case)}", f"in full: {case.to_json()}"]
    lines += [f"run it again: parity replay {case.id}"]
    return "\n".join(lines)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--parity-profile``, ``--parity-seed``, ``--parity-ops`` and their ini twins."""
    group = parser.getgroup("parity", "numerics parity of kernels")
    for name, (default, text) in OPTIONS.items():
        group.addoption(f"--parity-{name}", default=None, help=text)
        parser.addini(f"parity_{name}", help=text, default=default)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier before any test module imports Triton, and open the session's folder."""
    config.addinivalue_line("markers", "parity_op(*names): the ops that parity_case draws from")
    workerinput = getattr(config, "workerinput", {})
    if workerinput:
        leases.lease()
    tier = prepare()
    profile = _choice(config, "profile", PROFILES)
    seed = _seed(config)
    run = workerinput.get("parity_run") or time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"
    try:
        own = str(config.getini("parity_ops")) or configured(config.rootpath)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    ops = _option(config, "ops") or own
    config.stash[_TIER] = tier
    config.stash[_PROFILE] = profile
    config.stash[_SESSION] = Session(
        project=config.rootpath,
        run=Run(config.rootpath / ".parity" / "runs" / run),
        worker=workerinput.get("workerid", "main"),
        ops=ops,
        seed=seed,
        profile=PROFILES[profile],
        of_others=is_of_others(ops, own),
    )
    settings.register_profile(
        f"parity-{profile}",
        max_examples=PROFILES[profile].generated,
        deadline=None,  # a test never judges time
        derandomize=True,  # the same verdicts whatever the worker and the order
        database=None,  # found cases are kept as case files
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(f"parity-{profile}")


_SESSION = pytest.StashKey[Session]()
_TIER = pytest.StashKey[str]()
_PROFILE = pytest.StashKey[str]()


def _option(config: pytest.Config, name: str) -> str:
    given = config.getoption(f"--parity-{name}")
    return str(config.getini(f"parity_{name}") if given is None else given)


def _seed(config: pytest.Config) -> int:
    seed = _option(config, "seed")
    if not seed.isdecimal():
        raise pytest.UsageError(f"Expected --parity-seed as a whole number but got {seed!r}.")
    return int(seed)


def _choice(config: pytest.Config, name: str, allowed: dict[str, Profile]) -> str:
    value = _option(config, name)
    if value not in allowed:
        raise pytest.UsageError(
            f"Expected --parity-{name} among {', '.join(allowed)} but got {value!r}."
        )
    return value


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Hand the run's name to an xdist worker, so that all of them write into one folder."""
    node.workerinput["parity_run"] = node.config.stash[_SESSION].run.id  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed every generator from the test's name and the session's seed: the same numbers in any
    order and on any number of workers."""
    import numpy
    import torch

    name = f"{item.config.stash[_SESSION].seed}/{item.nodeid}"
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)  # CUDA too, on every device


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Tier, versions, profile and folder of the run."""
    session, tier = config.stash[_SESSION], config.stash[_TIER]
    where = "GPU" if tier == "gpu" else "CPU, through Triton's interpreter"
    versions = " ".join(f"{name} {version(name)}" for name in ("torch", "triton", "hypothesis"))
    return [
        f"parity: {tier} tier ({where}), python {sys.version.split()[0]} {versions}",
        f"parity: profile {config.stash[_PROFILE]}, seed {session.seed}, "
        f"ops {session.ops or 'of this repository'}, records in {session.run.folder}",
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One parameter for each planned case of the ops under test."""
    if "parity_case" not in metafunc.fixturenames:
        return
    session = metafunc.config.stash[_SESSION]
    try:
        cases = _cases(session, metafunc.definition.get_closest_marker("parity_op"))
    except ValueError as error:
        raise pytest.Collector.CollectError(str(error)) from error  # told without a traceback
    metafunc.parametrize("parity_case", cases, ids=[f"{case.op}-{case.id}" for case in cases])


def _cases(session: Session, mark: pytest.Mark | None) -> list[Case]:
    """The planned cases of the ops that a mark names, or of all; ValueError if it names none."""
    names = mark.args if mark else tuple(session.specs)
    if unknown := set(names) - set(session.specs):
        raise ValueError(f"Expected ops among {sorted(session.specs)} but got {sorted(unknown)}.")
    cases = [case for name in names for case in session.cases(session.specs[name])]
    if not cases:
        raise ValueError("Expected the name of an op in the mark parity_op but got none.")
    return cases


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let no test pass that compared nothing: it fails where it asks for ``parity_check`` and never
    calls it, and is skipped where some checks of its cases were NOT_RUN."""
    session = pyfuncitem.config.stash[_SESSION]
    before, gaps_before = len(session.checked), len(session.gaps)
    session.failed.clear()
    result = yield
    if "parity_check" in pyfuncitem.fixturenames and len(session.checked) == before:
        raise CaseFailed(
            "Expected the test to hand a case to parity_check but it handed none; call it."
        )
    if gaps := sorted(set(session.gaps[gaps_before:])):
        pytest.skip(f"NOT_RUN: {'; '.join(gaps)}")
    return result


@pytest.fixture(scope="session")
def parity_check(pytestconfig: pytest.Config) -> Callable[[Case], None]:
    """A function that runs a case and raises :class:`CaseFailed` if it has findings."""
    return pytestconfig.stash[_SESSION].check


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """How many cases ran and where their records are, summed over all workers."""
    session = config.stash[_SESSION]
    if session.run.folder.is_dir():
        for line in lines(session.run, session.specs):
            terminalreporter.write_line(line)
