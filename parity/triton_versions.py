"""What differs between the interpreters of the supported versions of Triton.

3.5 to 3.8 need nothing: their native loads and stores take any numpy type of a known width.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

FIRST, LAST = (3, 5), (3, 9)
Array = npt.NDArray[Any]


def adapt(interpreter: ModuleType) -> None:
    """Give `triton.runtime.interpreter` of any supported version the native calls of 3.5.

    Raises:
        RuntimeError: this version is not supported.
    """
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if not FIRST <= version <= LAST:
        raise RuntimeError(
            f"Expected triton {'.'.join(map(str, FIRST))} to {'.'.join(map(str, LAST))} to "
            f"interpret kernels but got {triton.__version__}; install one of them."
        )
    if version >= (3, 9):
        vars(interpreter)["_interpreter"] = PlainTypes(interpreter._interpreter)


class PlainTypes:
    """The native calls of 3.9, which know numpy's own types only: others go as integers."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, addresses: Array, mask: Array, other: Array, dtype: np.dtype[Any]) -> Array:
        """Values at `addresses` where `mask`, else `other`; all of one shape."""
        plain = _plain(np.dtype(dtype))
        loaded = self._native.load(addresses, mask, other.astype(dtype).view(plain), plain)
        return np.asarray(loaded).view(dtype)

    def store(self, addresses: Array, values: Array, mask: Array) -> None:
        """Write `values` where `mask`; all of one shape."""
        self._native.store(addresses, values.view(_plain(values.dtype)), mask)


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.type.__module__ == "numpy" else np.dtype(f"u{dtype.itemsize}")
