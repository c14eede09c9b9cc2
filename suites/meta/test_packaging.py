"""The wheel ships one top-level name and leaves Hugging Face's `kernels` package alone."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("parity", "kernels", "reference", "reports")
HUGGING_FACE = "kernels==0.17.2"
NAME = "parity-harness"

if find_spec("pip") is None or find_spec("setuptools") is None:
    pytest.skip("NOT_RUN: pip and setuptools are needed to build a wheel", allow_module_level=True)


def run(*command: str | Path) -> str:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(f"{command} failed:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def pip(*arguments: str | Path) -> str:
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def build(source: Path) -> Path:
    """Build the wheel of a source tree without an index and return its path."""
    target = source.parent / "wheels"
    pip("wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", target, source)
    return next(target.glob("*.whl"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def top_level_names(wheel: Path) -> set[str]:
    return {name.partition("/")[0] for name in names(wheel) if ".dist-info/" not in name}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what the build reads: building in place would leave files in the checkout."""
    copy = tmp_path / "source"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / file, copy / file)
    return copy


@pytest.fixture
def greedy_source(source: Path) -> Path:
    """The mistake: the same tree, its folders packaged under their bare names."""
    settings = (source / "pyproject.toml").read_text().partition("[tool.setuptools]")[0]
    packages = '[tool.setuptools]\npackages = ["parity", "kernels"]\n'
    (source / "pyproject.toml").write_text(settings + packages)
    # Hugging Face's package has this file too.
    (source / "kernels" / "__init__.py").write_text("")
    return source


def test_the_wheel_has_one_top_level_name(source: Path) -> None:
    assert top_level_names(build(source)) == {"parity"}


def test_the_wheel_holds_every_module(source: Path) -> None:
    shipped = names(build(source))
    for folder in FOLDERS:
        inside = "parity" if folder == "parity" else f"parity/{folder}"
        for path in (source / folder).rglob("*.py"):
            assert f"{inside}/{path.relative_to(source / folder)}" in shipped
    assert "parity/py.typed" in shipped
    for path in (source / "reports" / "page").iterdir():
        assert f"parity/reports/page/{path.name}" in shipped


def test_a_second_top_level_name_is_seen(greedy_source: Path) -> None:
    assert top_level_names(build(greedy_source)) == {"parity", "kernels"}


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The Python of a bare environment that holds Hugging Face's `kernels` and nothing else."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    try:
        pip("--python", folder, "install", "-q", "--no-deps", HUGGING_FACE)
    except RuntimeError as error:
        why = str(error).splitlines()[-1]
        pytest.skip(f"NOT_RUN: {HUGGING_FACE} could not be installed from the index: {why}")
    return folder / "bin" / "python"


def damaged(python: Path) -> list[str]:
    """The files of Hugging Face's `kernels` that are gone or changed, by its wheel's hashes."""
    folder = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[:-1])
    record = next(folder.glob("kernels-*.dist-info/RECORD"))
    hashed = [row[:2] for row in csv.reader(record.read_text().splitlines()) if row[1]]
    assert hashed
    return [name for name, digest in hashed if digest != f"sha256={sha256(folder / name)}"]


def sha256(path: Path) -> str:
    content = path.read_bytes() if path.exists() else b"absent"
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def origin(python: Path, module: str) -> str:
    """Where ``import module`` takes it from, relative to site-packages."""
    code = f"from importlib.util import find_spec as f; s = f({module!r}); print(s and s.origin)"
    return run(python, "-I", "-c", code).strip().partition("site-packages/")[2]


def test_the_wheel_lives_beside_hugging_face_kernels(source: Path, beside: Path) -> None:
    module = next((source / "kernels").glob("*.py")).stem
    pip("--python", beside, "install", "-q", "--no-index", "--no-deps", build(source))
    assert origin(beside, "kernels") == "kernels/__init__.py"
    assert origin(beside, f"parity.kernels.{module}") == f"parity/kernels/{module}.py"
    assert damaged(beside) == []

    pip("--python", beside, "uninstall", "-q", "-y", NAME)
    assert origin(beside, "parity") == ""
    assert origin(beside, "kernels") == "kernels/__init__.py"
    assert damaged(beside) == []


def test_a_wheel_that_takes_the_name_is_seen(greedy_source: Path, beside: Path) -> None:
    pip("--python", beside, "install", "-q", "--no-index", "--no-deps", build(greedy_source))
    assert damaged(beside)
    pip("--python", beside, "uninstall", "-q", "-y", NAME)
    assert damaged(beside)
