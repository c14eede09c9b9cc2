"""`parity doctor`: a whole machine is 0, each thing that is taken away is named and gives 10."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from parity import doctor
from parity.cli import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(project: Path) -> dict[str, doctor.Row]:
    return {row.name: row for row in doctor.examine(project)}


def test_this_machine_can_run_the_tiers_without_a_gpu(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "--json", "rows.json"]) == 0
    document = json.loads((project / "rows.json").read_text())
    named = [row["name"] for row in document["rows"]]
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == named
    assert document["schema_version"] == doctor.SCHEMA_VERSION
    assert not [row for row in document["rows"] if row["status"] != "ok" and not row["todo"]]
    gpu = next(row for row in document["rows"] if row["name"] == "gpu")
    assert gpu["status"] == ("ok" if torch.cuda.is_available() else "NOT_RUN")


def test_without_programs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    assert run(["doctor"]) == 10
    found = rows(project)
    assert (found["git"].status, found["chromium"].status) == ("missing", "NOT_RUN")


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [("2.8.1+cu128", "missing", "below 2.9"), ("2.10.0a0", "ok", ""), ("none", "missing", "below")],
)
def test_another_torch(
    given: str, status: str, said: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("torch")
    module.__version__ = given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    row = rows(project)["torch"]
    assert row.status == status
    assert said in row.found
    assert run(["doctor"]) == (10 if status == "missing" else 0)


def test_a_torch_that_cannot_be_imported(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert rows(project)["torch"].status == "missing"


def test_a_newer_triton_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton, "__version__", "3.8.0")
    row = rows(project)["triton"]
    assert (row.status, "3.7" in row.todo) == ("ok", True)


def test_an_assembler_that_does_not_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs, "nvidia", ModuleType("nothing"))
    assert rows(project)["ptxas"].status == "missing"


def test_where_nothing_can_be_written(project: Path) -> None:
    (project / ".parity").write_text("a file in the place of the folder")
    assert rows(project)["write"].status == "missing"
    assert run(["doctor"]) == 10


def test_a_full_disk(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project)._replace(free=doctor.FREE - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert rows(project)["disk"].status == "missing"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=doctor.FREE))
    assert rows(project)["disk"].status == "ok"


def test_releases_that_were_fetched_are_listed(project: Path) -> None:
    assert rows(project)["megatron"].status == "NOT_RUN"
    (project / ".parity" / "megatron" / "0.14.0").mkdir(parents=True)
    assert rows(project)["megatron"].found == "0.14.0 in .parity/megatron"


@pytest.mark.parametrize(
    ("driver", "uuids", "said"),
    [
        (None, [], "no NVIDIA driver answers"),
        ("575.57", [], "driver 575.57, 0 under CUDA_VISIBLE_DEVICES="),
        ("575.57", ["GPU-a", "GPU-b"], "driver 575.57, 2 under CUDA_VISIBLE_DEVICES="),
    ],
)
def test_a_driver_a_mask_and_a_torch_that_can_use_it(
    driver: str | None,
    uuids: list[str],
    said: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parity.leases.driver", lambda: driver)
    monkeypatch.setattr("parity.leases.visible_gpus", lambda: uuids)
    row = rows(project)["gpu"]
    assert row.found.startswith(said)
    assert row.status == ("ok" if uuids and torch.cuda.is_available() else "NOT_RUN")
    assert row.status == "ok" or row.todo


def test_its_versions_are_those_of_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = dict(item.split(">=") for item in settings["dependencies"])
    assert doctor.numbers(lowest["torch"]) == doctor.TORCH
    assert doctor.numbers(lowest["triton"]) == doctor.TRITON
    assert doctor.numbers(settings["requires-python"].removeprefix(">=")) == doctor.PYTHON
