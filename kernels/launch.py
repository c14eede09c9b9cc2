"""Launching a kernel in little host time.

Triton works out anew at every launch what to compile: dtypes, alignment and divisors of some
thirty arguments, half of the host time of a whole call.  It is the same for equal keys here, so the
compiled kernel is kept and launched directly from the second call on.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction


class Arguments(NamedTuple):
    """The arguments of a kernel, in the order of its parameters.

    Triton compiles for dtype and alignment of ``tensors`` (the first is not None) and for which
    ``fixed`` are 1 or multiples of 16; ``constants`` are compiled in.  ``counts`` change from call
    to call, and the kernel asks Triton not to look at them.
    """

    tensors: tuple[Tensor | None, ...]
    counts: tuple[int, ...]
    fixed: tuple[int, ...]
    constants: dict[str, Any]


# Left to itself, ptxas may spill a few bytes to get by with 32 or 56 registers; below level 4 it
# does not, and needs no more registers for it.
ASSEMBLER = "--register-usage-level=3"
_compiled: dict[tuple[object, ...], Any] = {}


def launch(kernel: Any, programs: int, arguments: Arguments, warps: int) -> None:
    """Launch ``programs`` programs on the device of the tensors, contraction off."""
    tensors, counts, fixed, constants = arguments
    values = (*tensors, *counts, *fixed)
    with torch.cuda.device_of(tensors[0]):
        key = compiled_for(kernel.__name__, arguments, warps)
        compiled = _compiled.get(key) if _is_stock() else None
        if compiled is not None:
            compiled[programs, 1, 1](*values, *constants.values())
            return
        compiled = kernel[(programs,)](
            *values, **constants, num_warps=warps, enable_fp_fusion=False, ptx_options=ASSEMBLER
        )
        if compiled is not None and _is_stock():  # the interpreter compiles nothing
            _compiled[key] = compiled


def compiled_for(name: str, arguments: Arguments, warps: int) -> tuple[object, ...]:
    """All that tells one compiled kernel from another, and perhaps more."""
    tensors, counts, fixed, constants = arguments
    kinds = [t if t is None else (t.get_device(), t.dtype, t.data_ptr() % 16 == 0) for t in tensors]
    return name, warps, fixed, *constants.values(), *kinds, max(counts) >> 31


def _is_stock() -> bool:
    """Whether nobody has replaced Triton's launch path, e.g. to watch launches or change them."""
    return JITFunction.run.__module__ == JITFunction.__module__


def not_compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Keep ``torch.compile`` out: Inductor would compile the kernel with contraction on."""
    hidden = torch.compiler.disable(function)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> None:
        # eager calls do not pay for what `disable` does around each of them
        (hidden if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return called
