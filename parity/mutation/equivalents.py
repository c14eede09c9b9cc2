"""Mutants that no case can tell from the original, each with a reason that somebody reviewed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ..given import given_text

FILE = Path("suites") / "equivalent_mutants.toml"


def reviewed(project: Path) -> dict[str, str]:
    """Ids of equivalent mutants with the reason, from ``suites/equivalent_mutants.toml``.

    Each ``[[reason]]`` has ``because``, one sentence, and ``mutants``, a list of ids.

    Raises:
        ValueError: the file is not of that form, or gives one mutant two reasons.
    """
    path = project / FILE
    if not path.is_file():
        return {}
    try:
        groups = tomllib.loads(given_text(path))["reason"]
        listed = [(str(name), group["because"]) for group in groups for name in group["mutants"]]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"Expected [[reason]] tables with because and mutants in {path} but got {error!r}; "
            "mend the file."
        ) from error
    found = dict(listed)
    if len(found) < len(listed) or not all(isinstance(b, str) and b for b in found.values()):
        raise ValueError(f"Expected one reason, a text, for each mutant in {path}; mend the file.")
    return found
