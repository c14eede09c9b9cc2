"""Leases of GPUs: what a mask shows, and that processes do not get in each other's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parity import leases

ROOT = Path(__file__).resolve().parents[2]
A, B, C = "GPU-aa11", "GPU-ab22", "GPU-cc33"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("2,0", [C, A]),
        (" 1 , 2", [B, C]),
        ("0,7,1", [A]),
        ("0,none,1", [A]),
        ("0,0", []),
        (f"{C},{A}", [C, A]),
        ("GPU-c,GPU-ab", [C, B]),
        ("GPU-a", []),  # the beginning of two
        (f"0,{A}", []),
        ("cc33", []),
        ("MIG-1234,MIG-GPU-aa11/1/0", ["MIG-1234", "MIG-GPU-aa11/1/0"]),
    ],
)
def test_what_a_mask_shows(mask: str | None, expected: list[str]) -> None:
    assert leases.shown(mask, [A, B, C]) == expected


HOLD = """
import sys
from pathlib import Path
from parity.leases import take
uuid, lock = take(sys.argv[2:], Path(sys.argv[1]))
print(uuid, flush=True)
sys.stdin.read()
"""


def hold(folder: Path, *uuids: str) -> tuple[subprocess.Popen[str], str]:
    """A process with a lease, and the GPU it got."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *uuids],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_processes_share_evenly_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    held = [hold(tmp_path / "gpus", A, "MIG-GPU-b/1/0") for _ in range(3)]
    try:
        assert [uuid for _, uuid in held] == [A, "MIG-GPU-b/1/0", A]
        held[1][0].kill()
        held[1][0].wait()
        assert leases.take([A, "MIG-GPU-b/1/0"], tmp_path / "gpus")[0] == "MIG-GPU-b/1/0"
    finally:
        for process, _ in held:
            process.kill()
            process.communicate()


MASKS = """
import os, time
import pytest
@pytest.mark.parametrize("i", range(4))
def test_mask(i):
    time.sleep(0.5)  # so that no worker takes them all
    with open(f"{os.environ['PYTEST_XDIST_WORKER']}.txt", "w") as file:
        file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))
"""


def masks_of_workers(folder: Path, mask: str) -> list[str]:
    """The masks of two workers of a session that was given this one."""
    (folder / "test_mask.py").write_text(MASKS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "parity.pytest_plugin"]
    environment[leases.MASK] = mask
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [file.read_text() for file in sorted(folder.glob("gw*.txt"))]


@pytest.mark.parametrize(
    ("models", "mask", "order", "visible"),
    [
        (["large", "large"], None, None, ["GPU-bus0", "GPU-bus1"]),
        (["large", "large"], "1", None, ["GPU-bus1"]),
        (["small", "large"], "1", None, []),  # CUDA may count the large one first
        (["small", "large"], "1", "PCI_BUS_ID", ["GPU-bus1"]),
        (["small", "large"], "GPU-bus1", None, ["GPU-bus1"]),
        (["small", "large"], None, None, ["GPU-bus0", "GPU-bus1"]),
    ],
)
def test_a_number_counts_only_where_its_order_is_known(
    models: list[str],
    mask: str | None,
    order: str | None,
    visible: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A stand-in for a driver with two GPUs, which no machine of ours has in two models."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "575.57",
        "nvmlDeviceGetCount": lambda: len(models),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: models[handle],
        "nvmlDeviceGetUUID": lambda handle: f"GPU-bus{handle}",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(leases.pynvml, name, answer)
    monkeypatch.setattr(leases, "OUTER", mask)
    monkeypatch.setattr(leases, "_held", [])
    monkeypatch.setattr(leases.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(leases.MASK, "as before")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    if order is not None:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert leases.driver() == "575.57"
    assert leases.visible_gpus() == visible
    assert leases.lease() == (visible[0] if visible else None)
    assert os.environ[leases.MASK] == (visible[0] if visible else "as before")
    if visible:  # held, until this process ends
        assert leases.lease() == visible[-1]


@pytest.mark.skipif(bool(leases.visible_gpus()), reason="NOT_RUN: for a machine without a GPU")
def test_without_a_gpu_nothing_happens() -> None:
    before = dict(os.environ)
    assert leases.lease() is None
    assert os.environ == before


@pytest.mark.skipif(len(leases.visible_gpus()) < 2, reason="NOT_RUN: two GPUs are needed")
def test_workers_get_gpus_of_their_own(tmp_path: Path) -> None:
    first, second = leases.visible_gpus()[:2]
    for mask in (f"{first},{second}", f"{second},{first}"):
        folder = tmp_path / mask
        folder.mkdir()
        assert sorted(masks_of_workers(folder, mask)) == sorted([first, second])


@pytest.mark.skipif(not leases.visible_gpus(), reason="NOT_RUN: a GPU is needed")
def test_workers_share_the_only_gpu_of_the_mask(tmp_path: Path) -> None:
    only = leases.visible_gpus()[-1]
    assert masks_of_workers(tmp_path, only) == [only, only]
