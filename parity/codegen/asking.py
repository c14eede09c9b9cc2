"""Have single launches compiled by another process, from one in which Triton interprets them.

A kernel that was decorated with `TRITON_INTERPRET=1` cannot be compiled in the same process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

DEADLINE = 120.0  # seconds for an answer: imports take some, a large unrolled loop takes 6
PACKAGES = ("parity", "parity.kernels", "parity.reference")
PLAIN = (bool, int, float, str, type(None))


def described(
    function: FunctionType, given: Mapping[str, Any], options: Mapping[str, Any], arch: str
) -> dict[str, Any] | None:
    """A launch as JSON values: tensors by dtype and alignment to 16 bytes; None if it has others.

    `given` are the kernel's arguments by name, `options` what a launch adds (`num_warps`, ...).
    """
    arguments = {name: _value(value) for name, value in given.items()}
    everything = (*arguments.values(), *options.values())
    if not all(isinstance(value, (dict, *PLAIN)) for value in everything):
        return None
    return {
        "module": function.__module__,
        "file": function.__code__.co_filename,
        "name": function.__qualname__,
        "arguments": arguments,
        "options": dict(options),
        "arch": arch,
    }


def _value(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return getattr(value, "value", value)  # a constexpr holds its value
    return {"dtype": str(value.dtype).rpartition(".")[2], "aligned": value.data_ptr() % 16 == 0}


@dataclass
class Compiler:
    """One compiling process, started when it is first asked; equal launches are asked once."""

    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    _process: subprocess.Popen[str] | None = None

    def ask(self, launch: Mapping[str, Any]) -> dict[str, str]:
        """`{"ttgir": text, "ptx": text}` of a launch, or `{"error": why}`."""
        question = json.dumps(launch, sort_keys=True)
        if question not in self.answers:
            self.answers[question] = self._asked(question)
        return self.answers[question]

    def _asked(self, question: str) -> dict[str, str]:
        if self._process is None or self._process.poll() is not None:
            self._process = _start()
        process = self._process
        try:
            _write(process, question)
            return dict(json.loads(_read(process)))
        except (BrokenPipeError, json.JSONDecodeError):
            process.kill()
            process.wait()
            return {"error": "the compiling process was lost, or took too long"}


def _start() -> subprocess.Popen[str]:
    environment = dict(os.environ)
    environment.pop("TRITON_INTERPRET", None)
    scratch = tempfile.TemporaryDirectory()
    atexit.register(scratch.cleanup)
    environment["TRITON_CACHE_DIR"] = scratch.name
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"{__package__}.answering"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    atexit.register(_end, process)
    loaded = [name for name in PACKAGES if name in sys.modules]
    paths = {name: list(sys.modules[name].__path__) for name in loaded}
    _write(process, json.dumps({"sys": sys.path, "packages": paths}))
    return process


def _end(process: subprocess.Popen[str]) -> None:
    """Close its input, at which it ends; what it still compiles is cut off."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()


def _write(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is not None:
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _read(process: subprocess.Popen[str]) -> str:
    """The next line, or nothing where none comes in time."""
    if process.stdout is None:
        return ""
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE)
    return process.stdout.readline() if ready else ""


COMPILER = Compiler()
