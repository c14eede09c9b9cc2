"""Everything that can change what a case gives: sources, machine, versions, variables.

Two runs with one fingerprint and one contract give the same record, so that the older one may stand
for the newer.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import distributions, version
from pathlib import Path

from ..spec import OpSpec

LARGEST = 2**30  # bytes of sources; hashing more would cost more than the cases
NOT_SOURCES = {".git", ".parity", "__pycache__"}
VERSIONS = ("torch", "triton", "numpy", "ml-dtypes")
VARIABLES = ("TRITON_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS", "NVIDIA_", "OMP_", "MKL_")
# Where compiled kernels lie and which of several equal devices runs them changes no bit.
NOT_VARIABLES = {"TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES"}


def fingerprint(root: Path, tier: str) -> dict[str, str]:
    """By name, what this process would compute with; called in the process of an arm.

    ``arm`` is the digest of every file below ``root`` (empty if they are too many to read),
    ``packages`` that of every installed version; the others are the environment.
    """
    return {"arm": _sources([root]), "packages": _packages()} | environment(root, tier)


def environment(root: Path, tier: str) -> dict[str, str]:
    """What two machines must share for their results to be comparable."""
    return {
        "harness": _sources(_harness(root), "*.py"),
        "tier": tier,
        "python": platform.python_version(),
        **{name: version(name) for name in VERSIONS},
        **_device(tier),
        "variables": _variables(),
    }


def contract(spec: OpSpec) -> str:
    """The digest of a contract; a contract is data, and its ``repr`` says all of it."""
    return _digest([repr(spec).encode()])


def differences(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """What changed, each in a few words; digests are not spelled out."""
    names = [name for name in now if then.get(name) != now[name]]
    short = {"arm", "harness", "packages"}
    return [
        f"another {name}" if name in short else f"{name} {then.get(name)!r} and not {now[name]!r}"
        for name in names
    ]


def _device(tier: str) -> dict[str, str]:
    import torch

    if tier != "gpu":
        capability = torch.backends.cpu.get_cpu_capability()
        return {"device": f"{platform.machine()} {capability}", "driver": ""}
    driver = Path("/sys/module/nvidia/version")
    loaded = driver.read_text().strip() if driver.is_file() else ""
    major, minor = torch.cuda.get_device_capability()
    name = f"{torch.cuda.get_device_name()} sm_{major}{minor}"
    return {"device": name, "driver": f"{loaded} CUDA {torch.version.cuda}"}


def _variables() -> str:
    names = sorted(set(os.environ) - NOT_VARIABLES)
    return " ".join(f"{name}={os.environ[name]}" for name in names if name.startswith(VARIABLES))


def _packages() -> str:
    found = {f"{item.name}=={item.version}" for item in distributions()}
    path = os.environ.get("PYTHONPATH", "")
    return _digest(line.encode() for line in (*sorted(found), path))


def _harness(root: Path) -> list[Path]:
    """The folders of parity that this process runs and that are not the arm's own."""
    kernels = [
        Path(p) for n in ("kernels", "reference") for p in import_module(f"parity.{n}").__path__
    ]
    own = [folder for folder in kernels if not folder.is_relative_to(root)]
    return [Path(str(import_module("parity").__file__)).parent, *own]


def _sources(folders: Iterable[Path], pattern: str = "*") -> str:
    """The digest of the names and contents of files, empty where they exceed ``LARGEST`` bytes."""
    listed = [(folder, file) for folder in folders for file in sorted(_files(folder, pattern))]
    if sum(file.stat().st_size for _, file in listed) > LARGEST:
        return ""
    return _digest(
        part
        for folder, file in listed
        for part in (str(file.relative_to(folder)).encode(), file.read_bytes())
    )


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    """The files below a folder, those behind links too; a link that leads back is not followed."""
    entered = set()
    for place, inside, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in entered:
            inside.clear()
            continue
        entered.add(real)
        inside[:] = [name for name in inside if name not in NOT_SOURCES]
        files = (Path(place, name) for name in names if name not in NOT_SOURCES)
        yield from (file for file in files if file.match(pattern) and file.is_file())


def _digest(parts: Iterable[bytes]) -> str:
    """SHA-256 over parts; each by its own digest, so that no two lists of parts read alike."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()
