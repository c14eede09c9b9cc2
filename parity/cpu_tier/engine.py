"""Run a kernel's whole grid at once, or one program after the other.

The batched engine is the default. Where programs part ways it takes back the stores and runs each
group again; where an operation is not covered it takes back the stores and runs the programs one
by one through the stock builder, and `counts` says how often and why.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from ..tuning import install as choose_without_timing
from .builder import ARGUMENT, BatchedBuilder
from .divergence import Diverged, NotCovered
from .language import interpret_language
from .memory import Array, Call, Memory
from .reductions import BatchedReduce, BatchedScan

# Programs that run as one batch: large enough to hide Python, small enough to stay in memory.
BATCH = 4096
Kernel = Callable[..., None]


@dataclass
class Counts:
    """What the engine did: launches, batches run to their end, groups run again, programs alone."""

    launches: int = 0
    batches: int = 0
    replays: int = 0
    sequential: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class Engine:
    """How launches run: `batched` or program by program, in which order, on which memory."""

    batched: bool = True
    reverse: bool = False
    memory: Memory = field(default_factory=Memory)
    counts: Counts = field(default_factory=Counts)

    @contextmanager
    def launched(self, call: Call) -> Iterator[None]:
        """The memory knows the launch within this context."""
        self.memory.launch(call)
        yield
        self.memory.finish()

    def run(self, kernel: Kernel, arguments: dict[str, Any], grid: Sequence[int]) -> None:
        """Run every program of the grid: x is the slowest index, as the stock executor runs it."""
        grid = (*map(int, grid), 1, 1)[:3]
        interpreter.interpreter_builder.set_grid_dim(*grid)
        self.counts.launches += 1
        order = np.arange(math.prod(grid))[:: -1 if self.reverse else 1]
        programs: Array = np.stack(np.unravel_index(order, grid), axis=-1).astype(np.int32)
        size = BATCH if self.batched else 1
        for start in range(0, len(programs), size):
            if self.batched or self.memory.traces:
                self._batch(kernel, arguments, programs[start : start + size])
            else:
                self._alone(kernel, arguments, programs[start], "asked for")

    def _batch(self, kernel: Kernel, arguments: dict[str, Any], programs: Array) -> None:
        """Run programs `[P, 3]` as one, in groups where they part, alone where they must."""
        waiting = [programs]
        while waiting:
            group = waiting.pop()
            self.memory.begin(group)
            try:
                with _batched_operations(group, self.memory):
                    kernel(**arguments)
            except Diverged as parting:
                self.memory.undo()
                self.counts.replays += 1
                waiting += [group[~parting.mask], group[parting.mask]]
            except (NotCovered, Exception) as reason:  # noqa: BLE001  the programs alone decide
                self.memory.undo()
                self.counts.reasons[_root(reason)] += 1
                if len(group) > 1:
                    waiting += np.split(group[::-1], len(group))
                else:
                    self._alone(kernel, arguments, group[0], _root(reason))
            else:
                self.memory.commit()
                self.counts.batches += 1

    def _alone(
        self, kernel: Kernel, arguments: dict[str, Any], program: Array, reason: str
    ) -> None:
        """Run one program `[3]` through the stock operations."""
        self.counts.sequential += 1
        self.memory.alone(reason)
        interpreter.interpreter_builder.set_grid_idx(*map(int, program))
        kernel(**arguments)


def _root(reason: BaseException) -> str:
    """What went wrong first: the interpreter wraps an error once for every device function."""
    while reason.__cause__ is not None:
        reason = reason.__cause__
    return str(reason) if isinstance(reason, NotCovered) else repr(reason)


ENGINE = Engine()


@contextmanager
def sequential(*, reverse: bool = False) -> Iterator[Engine]:
    """Within this context launches run program by program through the stock operations.

    Hardware promises no order of programs: bits that change with `reverse` depend on one.
    """
    before = ENGINE.batched, ENGINE.reverse
    ENGINE.batched, ENGINE.reverse = False, reverse
    try:
        yield ENGINE
    finally:
        ENGINE.batched, ENGINE.reverse = before


@contextmanager
def _batched_operations(programs: Array, memory: Memory) -> Iterator[None]:
    """Triton's language computes a whole set of programs `[P, 3]` within this context.

    The interpreter's one builder is captured in many closures, so its class is switched.
    """
    builder = interpreter.interpreter_builder
    builder.__class__ = BatchedBuilder
    builder.programs, builder.memory = programs, memory
    interpreter.ReduceOps, interpreter.ScanOps = BatchedReduce, BatchedScan
    try:
        yield
    finally:
        builder.__class__ = BatchedBuilder.__base__
        interpreter.ReduceOps, interpreter.ScanOps = BatchedReduce.__base__, BatchedScan.__base__


def install() -> None:
    """Let every interpreted launch of this process run through `ENGINE`; idempotent."""
    if interpreter.GridExecutor.__call__ is _launch:
        return
    interpret_language()
    interpreter.GridExecutor.__call__ = _launch
    choose_without_timing()


def _launch(executor: Any, *args: Any, **kwargs: Any) -> None:
    """One launch, in place of the stock `GridExecutor.__call__`: quiet, and through `ENGINE`."""
    if kwargs.pop("warmup", False):
        return
    options = {name: kwargs.pop(name) for name in set(kwargs) - set(executor.arg_names)}
    _refuse_odd_warps(executor.fn.__name__, options.get("num_warps"))
    # Tensors on the CPU are used where they are; the stock executor makes aliases of them.
    copied = torch.cuda.is_available()
    host = executor._init_args_hst(args, kwargs) if copied else (args, kwargs)
    for hook in getattr(executor, "pre_run_hooks", []):
        hook(*host[0], **host[1])
    bound = _signature(executor.fn).bind(*host[0], **host[1])
    bound.apply_defaults()
    given = bound.arguments
    arguments = {name: _argument(executor, name, value) for name, value in given.items()}
    grid = executor.grid(arguments) if callable(executor.grid) else executor.grid
    call = Call(executor.fn, given, options, (*grid, 1, 1)[:3])
    try:
        with np.errstate(all="ignore"), ENGINE.launched(call):
            ENGINE.run(executor.fn, arguments, grid)
    except Exception as error:
        raise InterpreterError(repr(error)) from error
    if copied:
        executor._restore_args_dev(args, host[0], kwargs, host[1])


def _refuse_odd_warps(kernel: str, warps: Any) -> None:
    """The compiler refuses such a launch, and the interpreter would not notice."""
    if isinstance(warps, int) and (warps < 1 or warps & (warps - 1)):
        raise ValueError(
            f"Expected num_warps of {kernel} to be a power of two but got {warps}; no GPU can "
            "launch it."
        )


_signature = functools.cache(inspect.signature)


def _argument(executor: Any, name: str, value: Any) -> Any:
    """What the kernel gets for an argument; pointers remember which argument they are."""
    if name in executor.constexprs:
        return value
    if isinstance(value, torch.Tensor) and value.is_meta:
        raise TypeError(f"Expected memory behind tensor {name} of a kernel but it is on meta.")
    argument = interpreter._implicit_cvt(value)
    if isinstance(value, torch.Tensor):
        argument.handle.attr[ARGUMENT] = name
    return argument
