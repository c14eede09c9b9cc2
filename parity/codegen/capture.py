"""The kernel launches of a case as Triton itself would compile them, without a GPU.

The candidate really runs, forward and backward, on tensors in main memory.  Triton's own launch
path binds the arguments and works out types, constants and hints for the target; only its two ends
are replaced: the driver, which names the target instead of asking a GPU for it, and compiling,
which is noted instead of done, so that nothing is launched.  Tensors of torch start at multiples
of 64 bytes in main memory, so that alignment to 16 bytes, the only kind that Triton looks at, is
as on a GPU.  Needs a process in which Triton does not interpret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from ..inputs import Inputs, build_inputs
from ..observe import describe_error, observe
from ..spec import OpSpec
from .cases import Call
from .occupancy import ARCHS


@dataclass(frozen=True)
class Launch:
    """One launch: what Triton compiles for it, and what it is launched with.

    ``config`` is the configuration of an autotuned kernel that has several.  ``arguments`` are the
    values of the parameters, tensors as the memory they lie in, ``grid`` counts the programs.
    """

    kernel: str
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    config: str
    source: Any
    options: Mapping[str, Any]
    target: GPUTarget


@dataclass
class Recorder:
    """Everything one run of a candidate asked of Triton and of torch, in order."""

    launches: list[Launch] = field(default_factory=list)
    torch_calls: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    alive: list[torch.Tensor] = field(default_factory=list)
    config: str = ""

    def memory(self, tensor: torch.Tensor) -> str:
        """Which tensor: its storage by name (or by order of first use), and its place in it."""
        self.alive.append(tensor)  # so that no later tensor gets its address
        address = tensor.untyped_storage().data_ptr()
        name = self.names.setdefault(address, f"allocated {len(self.names)}")
        offset, shape, stride = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return f"{name}+{offset} {tensor.dtype} {shape} {stride}"

    def digest(self) -> str:
        """SHA-256 of every torch operation and launch of the run: what the host does."""
        calls = [(item.grid, list(item.arguments.values())) for item in self.launches]
        return _sha256(json.dumps([self.torch_calls, calls], default=str))


class _TorchCalls(TorchDispatchMode):
    """Notes every torch operation with the memory it works on."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = (*args, *sorted((kwargs or {}).items()))
        shown = [str(_value(self.recorder, item)) for item in given]
        self.recorder.torch_calls.append(f"{func}({', '.join(shown)})")
        return func(*args, **(kwargs or {}))


def capture(spec: OpSpec, call: Call, arch: str) -> tuple[Recorder, str]:
    """Run a case for an architecture; returns what it launched and, in words, why it stopped.

    Raises:
        Unsupported: the candidate lacks what the case asks for.
    """
    recorder = Recorder()
    inputs = build_inputs(spec, call.case, torch.device("cpu"))
    _name_inputs(recorder, inputs)
    with target(arch), recording(recorder), _TorchCalls(recorder):
        seen = observe(inputs)
    results = {**seen.returned, **seen.leaving}
    recorder.torch_calls += [f"{name} = {recorder.memory(t)}" for name, t in results.items()]
    if seen.error is None:
        return recorder, ""
    kind, frame = describe_error(seen.error)
    return recorder, f"{seen.phase} raises {kind} in {frame}"


def _name_inputs(recorder: Recorder, inputs: Inputs) -> None:
    for name, item in inputs.tensors.items():
        recorder.alive.append(item.buffer)
        recorder.names[item.buffer.untyped_storage().data_ptr()] = name


@contextmanager
def target(arch: str) -> Iterator[None]:
    """Make Triton believe that the current device is of an architecture."""
    before = driver.__dict__.copy()
    number = ARCHS[arch]
    # Triton keeps what it works out by device, so each architecture is a device of its own.
    fake = SimpleNamespace(
        get_current_device=lambda: number,
        get_current_stream=lambda device=None: 0,
        get_current_target=lambda: GPUTarget("cuda", number, 32),
    )
    driver.set_active(fake)
    try:
        yield
    finally:
        driver.__dict__.update(before)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Note launches instead of compiling them; autotuned kernels launch once per configuration."""
    run, compile_, tune = JITFunction.run, JITFunction._do_compile, Autotuner.run
    pending: list[tuple[Any, ...]] = []

    def record_compile(
        self: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attrs: Any,
        warmup: Any,
    ) -> None:  # fmt: skip
        pending.append((self.ASTSource(self, signature, constants, attrs), dict(vars(options))))

    def record_run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        pending.clear()
        run(self, *args, grid=grid, warmup=warmup, **kwargs)
        if warmup:
            return
        source, options = pending.pop()
        named = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        bound = self.signature.bind(*args, **named)
        bound.apply_defaults()
        size = grid(bound.arguments) if callable(grid) else grid
        arguments = {name: _value(recorder, value) for name, value in bound.arguments.items()}
        target = driver.active.get_current_target()
        recorder.launches.append(
            Launch(self.__name__, tuple(size), arguments, recorder.config, source, options, target)
        )

    def run_every_config(self: Any, *args: Any, **kwargs: Any) -> None:
        every = self.configs
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs) if len(every) > 1 else every
        try:
            for config in configs:
                self.configs, recorder.config = [config], str(config) if len(every) > 1 else ""
                tune(self, *args, **kwargs)
        finally:
            self.configs, recorder.config = every, ""

    JITFunction.run, JITFunction._do_compile = record_run, record_compile
    Autotuner.run = run_every_config
    try:
        yield
    finally:
        JITFunction.run, JITFunction._do_compile, Autotuner.run = run, compile_, tune


def _value(recorder: Recorder, value: object) -> object:
    if isinstance(value, torch.Tensor):
        return recorder.memory(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(str(_value(recorder, item)) for item in value)}]"
    if isinstance(value, (int, float)):
        return value
    plain = isinstance(value, (str, type(None), torch.dtype, torch.device))
    return str(value) if plain else type(value).__name__  # an address is another one next time


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
