"""Which code an arm really ran: files, their digests, and the digests of its Triton functions."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .spec import OpSpec


class Misplaced(Exception):
    """A module under test that was not imported from its arm, in one sentence."""


def mount(root: Path) -> None:
    """Put the code of an arm first on the import path, before anything of it is imported.

    ``root`` and its ``src`` go on ``sys.path``; where ``root`` holds ``kernels/`` and
    ``reference/``, these become ``parity.kernels`` and ``parity.reference``, and no other folder
    adds to them, so that a file an arm lacks is missing and not borrowed.
    """
    sys.path[:0] = [str(folder) for folder in (root / "src", root) if folder.is_dir()]
    if all((root / name).is_dir() for name in ("kernels", "reference")):
        parent = importlib.import_module("parity")
        parent.__path__.insert(0, str(root))
        for name in ("kernels", "reference"):
            importlib.import_module(f"parity.{name}").__path__ = [str(root / name)]


def absent(dotted: str) -> str:
    """Why an arm has no such candidate, in one sentence, or an empty string.

    A module that exists and fails to import is not absent: its error comes through.
    """
    module, _, name = dotted.partition(":")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            return f"This arm has no module {error.name}."
        raise
    return "" if hasattr(imported, name) else f"This arm has no {name} in {module}."


def describe(specs: Iterable[OpSpec], root: Path) -> dict[str, Any]:
    """Files and Triton functions behind every candidate that this arm has.

    Returns ``{"files": {path: sha256}, "functions": {"module:name": sha256}}``, both sorted.

    Raises:
        Misplaced: a module under test lies outside ``root``.
        ValueError: Parity's own ops, which are taken where none are named, of a root without them;
            and from the candidate, where the root does not hold what it needs.
    """
    modules = {module.__name__: module for spec in specs for module in _under_test(spec)}
    for module in modules.values():
        if module.__file__ and not _inside(module, root):
            raise _misplaced(module, root)
    files = {module.__file__: module for module in modules.values() if module.__file__}
    functions: dict[str, str] = {}
    for module in modules.values():
        functions |= _triton_functions(module)
    return {
        "files": {path: digest(Path(path).read_bytes()) for path in sorted(files)},
        "functions": dict(sorted(functions.items())),
    }


def below_root(arm: Mapping[str, Any]) -> dict[str, str]:
    """The digest of every file of an arm, as ``run.json`` has them, by its path below the root."""
    root = Path(arm["root"]).resolve()
    files = arm.get("files", {})
    return {str(Path(file).resolve().relative_to(root)): sha256 for file, sha256 in files.items()}


def digest(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def _under_test(spec: OpSpec) -> list[ModuleType]:
    """The modules of a candidate and what is imported of their packages.

    A candidate that merely forwards (an adapter) says so: its module has a function ``modules()``
    that returns the modules under test.
    """
    try:
        if absent(spec.candidate):
            return []
    except Exception:  # noqa: BLE001 - code that does not import fails its cases, with a finding
        return []
    module = importlib.import_module(spec.candidate.partition(":")[0])
    named = module.modules() if hasattr(module, "modules") else (module,)
    packages = tuple(f"{item.__package__}." for item in named if item.__package__)
    loaded = [item for name, item in sys.modules.items() if name.startswith(packages)]
    return [*named, *(item for item in loaded if isinstance(item, ModuleType))]


def _misplaced(module: ModuleType, root: Path) -> Exception:
    if module.__name__.startswith("parity."):
        return ValueError(
            f"Expected Parity's own ops ({module.__name__}), which are taken where no others are "
            f"named, below {root} but it does not hold them; name yours with --ops, or as ops in "
            "[tool.parity] of pyproject.toml."
        )
    return Misplaced(
        f"Expected {module.__name__} from below {root} but it was imported from "
        f"{module.__file__}; check that the op's code lies in the arm's root."
    )


def _inside(module: ModuleType, root: Path) -> bool:
    return Path(str(module.__file__)).resolve().is_relative_to(root.resolve())


def _triton_functions(module: ModuleType) -> dict[str, str]:
    found = {}
    for name, value in vars(module).items():
        function = _python_function(value)
        if function is not None:
            source = inspect.getsource(function).encode()
            found[f"{function.__module__}:{name}"] = digest(source)
    return found


def _python_function(value: Any) -> Any:
    """The Python function inside a Triton function, whatever wraps it, or None."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    while isinstance(value, (Autotuner, Heuristics)):
        value = value.fn
    return value.fn if isinstance(value, (JITFunction, InterpretedFunction)) else None
