"""Compile a launch for its target and read off what the generated code costs.  Needs Triton."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.compiler.compiler import get_cache_invalidating_env_vars, make_backend
from triton.runtime.cache import get_cache_key

from ..given import given_json
from ..record import write_json
from .capture import Launch
from .occupancy import MAX_SHARED, MAX_WARPS, resident_warps
from .ptx import Instructions, count, normalise
from .row import SCHEMA_VERSION

Figures = dict[str, Any]


class NotCompiled(Exception):
    """A launch that Triton or its assembler refuses, or that no GPU of the target can hold."""


def measure(launch: Launch, cache: Path) -> Figures:
    """The figures of a launch; what was compiled before, from the same content, is read back.

    Raises:
        NotCompiled: in one line, without places in files.
    """
    entry = cache / f"{_content(launch)}.json"
    figures = _read(entry)
    if figures is None:
        figures = _compile(launch)
        write_json(entry, {"schema_version": SCHEMA_VERSION} | figures)
    return figures


def describe(launch: Launch) -> Figures:
    """Which launch it is: kernel, grid, constants, and the types and hints of its parameters."""
    source, names = launch.source, launch.source.fn.arg_names
    constants = {_path(names, path): _plain(value) for path, value in source.constants.items()}
    hints = {
        _path(names, path): f" {value}"
        for path, pairs in source.attrs.items()
        for attribute, value in pairs
        if attribute == "tt.divisibility"
    }
    types = {
        name: f"{kind}{hints.get(name, '')}"
        for name, kind in source.signature.items()
        if kind != "constexpr"
    }
    return {
        "kernel": launch.kernel,
        "config": launch.config,
        "grid": list(launch.grid),
        "constants": constants,
        "signature": types,
    }


def _path(names: list[str], path: tuple[int, ...]) -> str:
    return ".".join([names[path[0]], *map(str, path[1:])])


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _content(launch: Launch) -> str:
    """A digest of all that decides the generated code: kernel, helpers, constants, hints, tools."""
    backend = make_backend(launch.target)
    options = backend.parse_options(dict(launch.options))
    key = get_cache_key(launch.source, backend, options, get_cache_invalidating_env_vars())
    return hashlib.sha256(f"{SCHEMA_VERSION}-{key}".encode()).hexdigest()


def _read(entry: Path) -> Figures | None:
    try:
        found: Figures = given_json(entry)
    except (OSError, ValueError):
        return None  # absent or damaged: compiled again
    return found if found.pop("schema_version", None) == SCHEMA_VERSION else None


def _compile(launch: Launch) -> Figures:
    log = io.StringIO()
    try:
        with knobs.nvidia.scope(), knobs.compilation.scope(), redirect_stdout(log):
            knobs.nvidia.dump_ptxas_log = True  # Triton prints what its run of the assembler says
            knobs.compilation.always_compile = True  # what Triton has cached says nothing
            kernel = triton.compile(
                launch.source, target=launch.target, options=dict(launch.options)
            )
    except Exception as error:
        raise NotCompiled(_reason(error)) from error
    shared, ptx = kernel.metadata.shared, kernel.asm["ptx"]
    if shared > MAX_SHARED:
        raise NotCompiled(f"needs {shared} bytes of shared memory, the limit is {MAX_SHARED}")
    found = count(ptx)
    if not found.mix:
        raise NotCompiled("the PTX holds no instruction that parity can read")
    return (
        _resources(kernel.asm["cubin"], log.getvalue(), shared, kernel.metadata.num_warps)
        | _instructions(found)
        | {"code": code_digest(ptx, shared, launch.options)}
    )


def _reason(error: BaseException) -> str:
    """The class of the first of a chain of errors and the last line that says something."""
    while error.__cause__ is not None:  # Triton raises one for every call around the fault
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^\n")]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def _resources(cubin: bytes, log: str, shared: int, warps: int) -> Figures:
    """Registers and stack of the binary; spilled bytes, which only the assembler's log tells."""
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    usage = _usage(cubin)
    if not spilled:
        raise NotCompiled("the assembler's log does not say what was spilled")
    resident = resident_warps(usage["REG"], shared, warps)
    return {
        "registers": usage["REG"],
        "spills": sum(int(size) for pair in spilled for size in pair),
        "local_bytes": usage["STACK"] + usage["LOCAL"],
        "shared_bytes": shared,
        "warps": warps,
        "resident_warps": resident,
        "occupancy": resident / MAX_WARPS,
    }


def _usage(cubin: bytes) -> dict[str, int]:
    """What ``cuobjdump --dump-resource-usage`` says, by resource; the largest of all functions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage: dict[str, int] = {}
    for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text):
        usage[name] = max(usage.get(name, 0), int(value))
    return usage


def _instructions(found: Instructions) -> Figures:
    return {
        "load_bits": max(found.loads, default=0),
        "store_bits": max(found.stores, default=0),
        "load_widths": {str(bits): number for bits, number in sorted(found.loads.items())},
        "store_widths": {str(bits): number for bits, number in sorted(found.stores.items())},
        "barriers": found.barriers,
        "fma": found.fma,
        "instructions": found.mix,
    }


def code_digest(ptx: str, shared: int, options: Any) -> str:
    """A digest of the normalised PTX and of what the assembler and the driver are told besides."""
    told = [shared, options["enable_fp_fusion"], options.get("ptx_options")]
    return hashlib.sha256(f"{told}\n{normalise(ptx)}".encode()).hexdigest()
