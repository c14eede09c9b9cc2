"""Triton's language, interpreted for the whole life of the process.

The stock executor patches `triton.language` anew for each launch and for each call of a device
function (about 1 ms each) and builds every block type anew: most of the time of a small launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterOptions

from .divergence import index, truth


def interpret_language() -> None:
    """Patch `triton.language` once, with truth values that know about many programs."""
    hooks = vars(interpreter)
    hooks["_patch_lang"](FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core}))
    hooks["_patch_lang"] = lambda function: _Patched()
    tl.tensor.__bool__ = lambda self: truth(self.handle.data)
    tl.tensor.__index__ = lambda self: index(self.handle.data)
    tl.tensor.T = property(lambda self: tl.trans(self))
    _build_each_block_type_once()
    _build_each_shape_once()
    _options(check=False)


@contextmanager
def overflow_checked() -> Iterator[None]:
    """Within this context a launch raises where an int32 operation leaves its range.

    Twice as slow. `tl.device_assert` is active, too, as in a kernel compiled with `debug=True`.

    Raises:
        triton.runtime.errors.InterpreterError: names the operation that overflowed.
    """
    _options(check=True)
    try:
        yield
    finally:
        _options(check=False)


def _options(*, check: bool) -> None:
    # Stock: the overflow check on, debug off. Then all of its work is done and no error raised.
    options = InterpreterOptions(debug=check, sanitize_overflow=check)
    interpreter.interpreter_builder.options = options


@dataclass
class _Patched:
    """What the stock patch returns; there is nothing to put back."""

    def restore(self) -> None:
        """The language stays interpreted."""


def _build_each_block_type_once() -> None:
    block, known = tl.block_type, {}
    build = block.__init__

    def new(kind: type, *arguments: Any) -> Any:
        if kind is not block or len(arguments) != 2:  # a subclass, or copy.copy
            return object.__new__(kind)
        element, shape = arguments
        place = (getattr(element, "address_space", 0), getattr(element, "const", False))
        key = (element.name, *place, *[getattr(size, "value", size) for size in shape])
        if key not in known:
            known[key] = object.__new__(kind)
        return known[key]

    def initialise(self: Any, element_ty: Any, shape: Any) -> None:
        if not hasattr(self, "numel"):
            build(self, element_ty, shape)

    block.__new__, block.__init__ = new, initialise


def _build_each_shape_once() -> None:
    build = tl.tensor.__init__

    def initialise(self: Any, handle: Any, type: Any) -> None:
        known = vars(type).get("_shape_of_tensors")
        if known is None:
            build(self, handle, type)
            type._shape_of_tensors = self.shape, self.numel
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known

    tl.tensor.__init__ = initialise
