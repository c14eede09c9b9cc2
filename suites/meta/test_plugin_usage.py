"""A mistake in pytest's options, marks or project is told in a sentence, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity.catalog import is_of_others
from parity.profiles import PROFILES
from parity.pytest_plugin import _choice, _seed
from suites.meta.double import FILES

ROOT = Path(__file__).resolve().parents[2]


def test_an_unknown_profile_and_a_seed_that_is_no_number(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request.config.option, "parity_seed", "7")
    monkeypatch.setattr(request.config.option, "parity_profile", "dev")
    assert (_seed(request.config), _choice(request.config, "profile", PROFILES)) == (7, "dev")
    monkeypatch.setattr(request.config.option, "parity_seed", "-1")
    with pytest.raises(pytest.UsageError, match="Expected --parity-seed as a whole number but got"):
        _seed(request.config)
    monkeypatch.setattr(request.config.option, "parity_profile", "all")
    with pytest.raises(pytest.UsageError, match=r"Expected --parity-profile among dev, .* 'all'"):
        _choice(request.config, "profile", PROFILES)


def session(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code of a session in a folder, and what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    plugins = ["-p", "parity.pytest_plugin", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *options],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_marks_that_name_no_op(project: Path) -> None:
    for name, mark in (("other", '"triple"'), ("none", "")):
        (project / f"test_{name}.py").write_text(
            f"import pytest\n\n@pytest.mark.parity_op({mark})\ndef test_it(parity_case): ...\n"
        )
    code, told = session(project)
    assert code == pytest.ExitCode.INTERRUPTED
    assert "Expected ops among ['double'] but got ['triple']." in told
    assert "Expected the name of an op in the mark parity_op but got none." in told
    assert "pytest_plugin.py" not in told


def test_a_project_that_names_its_ops_wrongly(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.parity]\nopps = "own_ops:OPS"\n')
    code, told = session(project)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert told.strip().startswith("ERROR: Expected [tool.parity] in ")
    assert len(told.strip().splitlines()) == 1


def test_kept_cases_are_of_the_projects_own_ops(project: Path) -> None:
    """Megatron-Core's ops have names of this repository's, and other contracts."""
    kept = project / "suites" / "corpus" / "fused_mla_rope_concat" / "of_another.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("no case")
    (project / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.parity_op('fused_mla_rope_concat')\n"
        "def test_it(parity_case): ...\n"
    )
    code, told = session(project, "--collect-only", "--parity-ops", "megatron")
    assert code == 0, told


@pytest.mark.parametrize(
    ("ops", "own", "of_others"),
    [
        ("megatron", None, True),
        ("parity.adapters.megatron:OPS", None, True),
        ("megatron", "own:OPS", True),
        ("megatron", "megatron", False),
        ("parity", "own:OPS", True),
        ("parity", None, False),
        (None, None, False),
        (None, "own:OPS", False),
        ("own:OPS", None, False),
        ("own:MORE", "own:OPS", False),
    ],
)
def test_whose_contracts_are_meant(ops: str | None, own: str | None, of_others: bool) -> None:
    assert is_of_others(ops, own) == of_others
