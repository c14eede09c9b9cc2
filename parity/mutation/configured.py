"""What a project says about its mutants in ``[tool.parity.mutation]`` of its pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..given import settings

KEYS = {"suites", "functions"}


def configured(project: Path) -> dict[str, Any]:
    """The fields of a :class:`.session.Request` that the project sets; ``suites`` are its own.

    Raises:
        ValueError: an unknown key, no list of texts, or a file that does not exist.
    """
    file = project / "pyproject.toml"
    table = settings(project).get("mutation", {})
    named = isinstance(table, dict) and set(table) <= KEYS
    if not named or not all(_texts(value) for value in table.values()):
        raise ValueError(
            f"Expected suites and functions, lists of texts, in [tool.parity.mutation] of {file} "
            f"but got {table!r}; see docs/mutation.md."
        )
    suites = tuple(project / name for name in table.get("suites", ()))
    for path in suites:
        if not path.is_file():
            raise ValueError(
                f"Expected the suite {path}, which {file} names, but found none; correct its name."
            )
    return {"suites": suites, "functions": tuple(table.get("functions", ()))}


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
