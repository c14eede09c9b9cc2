"""Which lines of the code under test a case executes: no other case can notice a mutant there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..case import Case
from ..record import Record
from ..spec import OpSpec

Reach = dict[str, set[int]]  # file, relative to the root, to line numbers


def run_traced(spec: OpSpec, case: Case, arm: str, root: str) -> tuple[Record, Reach]:
    """The record of a case, and every line below ``root`` that it executed.

    Triton's interpreter runs a kernel as Python, under the line numbers of its file.
    """
    from ..isolation import run_here

    with traced(Path(root)) as reach:
        record = run_here(spec, case, arm)
    return record, reach


@contextmanager
def traced(root: Path) -> Iterator[Reach]:
    """Collect the lines below ``root`` that this thread executes."""
    prefix, reach = f"{root}/", Reach()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(prefix):
            return None
        lines = reach.setdefault(name.removeprefix(prefix), set())
        lines.add(frame.f_lineno)

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            lines.add(frame.f_lineno)
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield reach
    finally:
        sys.settrace(before)
