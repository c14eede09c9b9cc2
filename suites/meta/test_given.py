"""What a user writes wrongly is refused in one sentence that names the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from parity import cli
from parity.case import Case
from parity.catalog import configured
from parity.dumps.command import configured_limits
from parity.gate import known
from parity.git import Refused
from parity.given import given_json, settings
from parity.mutation.configured import configured as mutation
from parity.record import Record, read
from parity.tiers.case_file import read_cases
from parity.verdict import Exit

GOLDEN = Path(__file__).parent / "golden" / "red" / "run"
LATIN = "# für Zwei\n".encode("latin-1")


def read_all(project: Path) -> None:
    """What every part of Parity reads of a project."""
    configured(project)
    known.load(project)
    mutation(project)
    configured_limits(project)


def test_a_project_may_say_nothing(tmp_path: Path) -> None:
    assert settings(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nops = 1\n")
    assert settings(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[tool.parity]\nops = "x:y"\n')
    assert settings(tmp_path) == {"ops": "x:y"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LATIN, "Expected UTF-8 text in {} but byte 3 is none; save it as UTF-8."),
        (b"[tool", "Expected TOML in {} but got"),
        (b"tool = 3", "Expected tool in {} to be a table but got 3."),
        (b"[tool]\nparity = []", "Expected parity in {} to be a table but got []."),
        (b"[tool.parity]\nop = 'x:y'", "Expected [tool.parity] in {} with keys among dumps, "),
        (b"[tool.parity]\nops = 3", "in {} but got 3."),
        (b"[tool.parity]\nmutation = 3", "in [tool.parity.mutation] of {} but got 3;"),
        (b"[tool.parity]\ndumps = 3", "share = 0.001 }}] in {} but got"),
        (b"[tool.parity.dumps]\nlimits = 3", "share = 0.001 }}] in {} but got"),
    ],
)
def test_a_pyproject_that_means_nothing(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_bytes(content)
    with pytest.raises((Refused, ValueError), match="Expected") as refused:
        read_all(tmp_path)
    assert said.format(file) in str(refused.value)


def records(path: Path) -> list[Record]:
    return [*read(path)]


@pytest.mark.parametrize("read", [Case.from_file, read_cases, records, given_json])
def test_a_file_in_another_encoding(tmp_path: Path, read: Callable[[Path], object]) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(LATIN)
    with pytest.raises(ValueError, match=r"Expected UTF-8 text in .*case.json but byte 3 is none"):
        read(file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--root", "a_file"], "Expected a folder to import head from at a_file but there is none"),
        (["--root", "gone"], "Expected a folder to import head from at gone but there is none"),
        (["--suite", "."], "Expected a pytest file at --suite . but there is none."),
        (["--suite", "gone.py"], "Expected a pytest file at --suite gone.py but there is none."),
    ],
)
def test_paths_of_a_mutation_that_lead_nowhere(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    assert cli.run(["mutate", *arguments]) == Exit.USAGE
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("name", "text"),
    [*product(("run.json", "result.json", "environment.json"), ('{"a', "", "[]", "3"))],
)
def test_a_file_of_a_run_that_is_no_json_object(
    name: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(GOLDEN, tmp_path / ".parity" / "runs" / "one")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ".parity" / "runs" / "one" / name
    file.write_text(text)
    commands = [["report", "--json", "-"]]
    commands += [["gate", "--resume"]] if name != "environment.json" else []
    for command in commands:
        assert cli.run(command) == Exit.USAGE
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"Expected a JSON object in {file} but got ")
        assert told.endswith("; move the file or its folder away.")
