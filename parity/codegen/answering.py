"""The process that compiles single launches for one in which Triton interprets.

`python -m parity.codegen.answering` reads one JSON document a line: first the import paths, then
launches as :mod:`parity.codegen.asking` describes them; each is answered by one line.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO


def main() -> None:
    """Answer until the other side closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imported code prints must not look like an answer
    _mount(json.loads(sys.stdin.readline()))
    # Kernels are compiled here, even if the module that has them asks to have them interpreted.
    vars(importlib.import_module("parity.interpreter"))["prepare"] = lambda: "gpu"
    for line in sys.stdin:
        _answer(answers, json.loads(line))


def _mount(paths: Mapping[str, Any]) -> None:
    sys.path[:] = paths["sys"]
    for package, folders in paths["packages"].items():
        importlib.import_module(package).__path__ = folders


def _answer(answers: TextIO, launch: Mapping[str, Any]) -> None:
    os.environ.pop("TRITON_INTERPRET", None)  # an imported module may have set it
    try:
        answer = _compiled(launch)
    except Exception as error:  # noqa: BLE001  # whatever the compiler or the user's code raises
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        answer = {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _compiled(launch: Mapping[str, Any]) -> dict[str, Any]:
    """TTGIR and PTX of a launch, by the types, constants and hints that Triton itself derives."""
    import triton

    from .capture import Recorder, recording, target

    kernel = _kernel(launch)
    arguments = {name: _value(item) for name, item in launch["arguments"].items()}
    recorder = Recorder()
    with target(launch["arch"]), recording(recorder):
        kernel[(1,)](**arguments, **launch["options"])
    seen = recorder.launches[0]
    compiled = triton.compile(seen.source, target=seen.target, options=dict(seen.options))
    return {name: compiled.asm[name] for name in ("ttgir", "ptx")}


def _kernel(launch: Mapping[str, Any]) -> Any:
    """The kernel that Triton compiles, without its autotuner or heuristics."""
    from triton.runtime.jit import JITFunction

    found: Any = _module(launch["module"], launch["file"])
    for name in launch["name"].split("."):
        found = getattr(found, name)
    while not isinstance(found, JITFunction):
        found = found.fn
    return found


def _module(name: str, file: str) -> ModuleType:
    """The module by its name where that is the same file, else from its file."""
    try:
        module = importlib.import_module(name)
        if Path(module.__file__ or "") == Path(file):
            return module
    except ImportError:
        pass
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module can be made of {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _value(item: Any) -> Any:
    """A tensor with the dtype and the alignment described, or the value itself."""
    if not isinstance(item, dict):
        return item
    import torch

    tensor = torch.empty(64, dtype=getattr(torch, item["dtype"]))
    return tensor if item["aligned"] else tensor[1:]


if __name__ == "__main__":
    main()
