"""Published releases of Megatron-Core for the tests that run its kernels."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import setuptools  # noqa: F401  # Megatron-Core imports it, which fails once distutils is there

from parity.adapters import megatron_module

KEPT = Path(__file__).resolve().parent.parent / ".parity" / "megatron"


@pytest.fixture(scope="session")
def megatron_release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where a release lies unpacked: as ``make gate`` left it, else fetched."""

    def release(version: str) -> Path:
        if (KEPT / version).is_dir():
            return KEPT / version
        folder = tmp_path_factory.getbasetemp() / "megatron"
        if not (folder / version).is_dir():
            _fetch(version, folder)
        return folder / version

    return release


def _fetch(version: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    fetch += ["--python-version", "3.11", "-d", str(folder), f"megatron-core=={version}"]
    fetched = subprocess.run(fetch, capture_output=True, text=True, check=False)
    wheels = list(folder.glob(f"megatron_core-{version}-*.whl"))
    if not wheels:
        pytest.skip(
            f"NOT_RUN: pip could not fetch megatron-core {version}: {fetched.stderr[-200:]}"
        )
    unpack = [sys.executable, "-m", "zipfile", "-e", str(wheels[0]), str(folder / version)]
    subprocess.run(unpack, check=True)


@pytest.fixture
def megatron_from(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Path], AbstractContextManager[None]]:
    """Import ``megatron`` from a folder within a ``with``, and forget it afterwards."""

    @contextmanager
    def importing(root: Path) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for name in _megatron():
                patch.delitem(sys.modules, name)
            patch.syspath_prepend(root)
            _forget()
            yield
            for name in _megatron():
                del sys.modules[name]
        _forget()

    return importing


def _megatron() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "megatron"]


def _forget() -> None:
    megatron_module.fused_module.cache_clear()
    megatron_module._autotuned.cache_clear()
