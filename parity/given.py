"""Files that a user gives or may have changed: text, JSON, and ``[tool.parity]``."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

KEYS = ("dumps", "known_issues", "mutation", "ops")


def given_text(path: Path) -> str:
    """The text of a file; ValueError, in one sentence, where it is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 text in {path} but byte {error.start} is none; save it as UTF-8."
        ) from error


def given_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError, in one sentence, where there is none."""
    try:
        document = json.loads(given_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"Expected a JSON object in {path} but got {error}; move the file or its folder away."
        ) from error
    if not isinstance(document, dict):
        raise ValueError(
            f"Expected a JSON object in {path} but got {type(document).__name__}; move the file or "
            "its folder away."
        )
    return document


def settings(folder: Path) -> dict[str, Any]:
    """``[tool.parity]`` in the pyproject.toml of a folder, empty where there is none.

    Raises:
        ValueError: in one sentence, for a file that is no TOML, no table, or an unknown key.
    """
    file = folder / "pyproject.toml"
    try:
        table = tomllib.loads(given_text(file)) if file.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"Expected TOML in {file} but got {error}; mend the file.") from error
    for name in ("tool", "parity"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"Expected {name} in {file} to be a table but got {table!r}.")
    if unknown := set(table) - set(KEYS):
        raise ValueError(
            f"Expected [tool.parity] in {file} with keys among {', '.join(KEYS)} but got "
            f"{', '.join(sorted(unknown))}; see docs/config.md."
        )
    return table
