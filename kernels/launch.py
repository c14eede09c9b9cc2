"""Launching a kernel in little host time.

What a call demands of its arguments, and how it launches its kernel, follows from the layouts of
its tensors and from its flags.  So it is worked out once for each combination and then kept, with
the compiled kernel, which Triton would look up by thirty arguments at every launch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from operator import or_
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver, jit

from .validation import is_validating

P, R = ParamSpec("P"), TypeVar("R")
Tensors = tuple[Tensor | None, ...]
Shapes = Sequence[tuple[int, ...] | None]
ALIGNED = 16  # bytes, the only alignment of a tensor that Triton compiles for
KEPT = 4000  # launches: packs may differ at every step of a training
# Left to itself, ptxas may spill a few bytes to get by with 32 or 56 registers; below level 4 it
# does so in one launch of a thousand, and needs no more registers for it.
ASSEMBLER = "--register-usage-level=3"


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep ``torch.compile`` out: Inductor would compile the kernel with contraction on."""
    hidden = torch.compiler.disable(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        # eager calls do not pay for what `disable` does around each of them
        return (hidden if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return called


def once_differentiable(backward: Callable[..., R]) -> Callable[..., R]:
    """Torch's, and :func:`not_compiled`; only calls with ``create_graph`` pay for a grad mode."""
    hidden = torch.compiler.disable(torch.autograd.function.once_differentiable(backward))

    @wraps(backward)
    def called(ctx: Any, *grads: Tensor) -> R:
        plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        return (backward if plain else hidden)(ctx, *grads)

    return called


@dataclass
class Launch:
    """One launch of ``kernel`` on the device of that number, complete but for its tensors.

    Triton compiles for dtype and alignment of the tensors and for which ``fixed`` are 1 or
    multiples of 16; ``constants`` are compiled in, and ``counts`` it is asked not to look at.
    ``shapes`` are those of the tensors that the kernel fills, None for one that nobody asked for.
    """

    kernel: Any
    device: int
    programs: int
    counts: tuple[int, ...]
    fixed: tuple[int, ...]
    constants: dict[str, Any]
    warps: int
    shapes: Shapes
    _compiled: Any = None

    def __post_init__(self) -> None:
        self._numbers = (*self.counts, *self.fixed, *self.constants.values())
        self._memory = [shape and (shape, _row_major(shape)) for shape in self.shapes]

    def outputs(self, like: Tensor) -> list[Any]:
        """New tensors of these ``shapes``, or None, in dtype and device of ``like``."""
        # `new_empty` would work out the strides on every call
        return [memory and like.new_empty_strided(*memory) for memory in self._memory]

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch on the current stream with contraction off; nothing if there are no programs."""
        if self.programs == 0:
            return
        addresses = [0 if t is None else t.data_ptr() for t in tensors]
        direct = reduce(or_, addresses) % ALIGNED == 0 and not self._is_watched()
        compiled = self._compiled
        if direct and compiled and driver.active.get_current_device() == self.device:
            compiled.run(
                self.programs, 1, 1, driver.active.get_current_stream(self.device),
                compiled.function, compiled.packed_metadata, None, None, None,
                *addresses, *self._numbers,
            )  # fmt: skip
            return
        compiled = self._through_triton(tensors)
        if direct:
            self._compiled = compiled

    def _through_triton(self, tensors: Tensors) -> Any:
        """Launch as Triton does, which compiles at first; None from the interpreter."""
        if any(t is not None and t.is_meta for t in tensors):
            # a GPU would read address 0, after which nothing in this process runs on it
            raise TypeError("Expected tensors with memory but got one on meta; move it first.")
        with torch.cuda.device(self.device):
            return self.kernel[(self.programs,)](
                *tensors, *self.counts, *self.fixed, **self.constants,
                num_warps=self.warps, enable_fp_fusion=False, ptx_options=ASSEMBLER,
            )  # fmt: skip

    def _is_watched(self) -> bool:
        """Whether somebody hooked or replaced Triton's launch path, to see or change launches."""
        run = self.kernel.run  # `wraps` copies a module's name, not its globals
        return bool(
            getattr(run, "__globals__", None) is not vars(jit)
            or getattr(knobs.runtime.launch_enter_hook, "calls", True)
            or getattr(knobs.runtime.launch_exit_hook, "calls", True)
            or getattr(self.kernel, "pre_run_hooks", True)
        )


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


launches: dict[tuple[Any, ...], Launch] = {}


def once_per_layout(make: Callable[..., Launch]) -> Callable[..., Launch]:
    """Keep what ``make`` gives for tensors of some layouts and some flags.

    Of a tensor it may look at nothing but shape, strides, dtype and device, and it holds none.
    Inside :func:`.validation.validation` it is called every time, since values count then.
    """

    @wraps(make)
    def made(tensors: Tensors, *flags: Any) -> Launch:
        if is_validating():
            return make(tensors, *flags)
        layouts = [None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors]
        key = (make, *flags, *layouts)
        launch = launches.get(key)
        if launch is None:
            launch = make(tensors, *flags)
            if len(launches) >= KEPT:
                launches.clear()
            launches[key] = launch
        return launch

    return made
