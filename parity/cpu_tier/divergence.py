"""Where programs part ways: Python's `if`, `while` and `range` on a value that differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Diverged(BaseException):
    """Programs disagree on a branch: `mask` `[P]` is true for those that go the first way.

    Not an Exception: Triton's interpreter wraps those, and a kernel may catch them.
    """

    def __init__(self, mask: Array) -> None:
        self.mask = mask


class NotCovered(BaseException):
    """The batched engine does not do this operation; `str(error)` names it."""


def one_value(data: Array) -> Any:
    """The value on which all programs agree, from `[P]` or `[P, 1...]`.

    Raises:
        Diverged: they do not agree.
    """
    values = data.reshape(-1)
    same = values == values[0]
    if not same.all():
        raise Diverged(same)
    return values[0]


def truth(data: Array) -> bool:
    """`bool` of a scalar of each program; blocks of several elements are true, as in Triton.

    Raises:
        Diverged: it is true in some programs only.
    """
    return bool(one_value(data.astype(bool))) if data.size == len(data) else True


def index(data: Array) -> int:
    """`int` of a scalar of each program, for `range` and for indexing.

    Raises:
        Diverged: it differs between programs.
    """
    return int(one_value(np.asarray(data)))
