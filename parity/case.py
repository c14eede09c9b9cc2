"""A case: one fully specified input set, as a JSON document with a content id.

A case names no revision, no machine and no random generator of a library: the same document gives
the same bits on every torch and every version of Hypothesis.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from .given import given_text

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Case:
    """One input set of one op.

    ``axes`` holds the integer dimensions (sbhd also ``seq`` and ``batch``).  In the thd layout
    ``lengths`` are the global lengths of the sequences, ``gaps`` the padding rows after each of
    them (global, like ``cu_seqlens_padded``) and ``tail`` the rows past the last sequence.
    ``variants`` says how each tensor lies in memory or is stored, by tensor name, and under
    ``values`` what regime the numbers are from.
    """

    op: str
    layout: str
    dtype: str
    axes: Mapping[str, int]
    table_dtype: str = "float32"
    halves: str = "different"
    lengths: tuple[int, ...] = ()
    gaps: tuple[int, ...] = ()
    tail: int = 0
    cp_size: int = 1
    cp_rank: int = 0
    flags: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    tile: Mapping[str, int | None] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def id(self) -> str:
        """Twelve hex digits of the SHA-256 of the canonical JSON text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, with ``schema_version``."""
        document = {item.name: getattr(self, item.name) for item in fields(self)}
        document |= {name: dict(document[name]) for name in _MAPPINGS}
        document |= {name: list(document[name]) for name in _COUNTS}
        return {"schema_version": SCHEMA_VERSION} | document

    def to_json(self) -> str:
        """The canonical text: sorted keys, no spaces."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, document: Any) -> Case:
        """Read a case; raises ValueError in one sentence for anything that is not one."""
        if not isinstance(document, dict):
            raise ValueError(
                f"Expected a case as a JSON object but got {type(document).__name__}; "
                "copy one from .parity/runs/<id>/cases."
            )
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"Expected a case with schema_version {SCHEMA_VERSION} but got {version!r}; "
                "write it again with this version of parity."
            )
        names = {item.name for item in fields(cls)}
        unknown = sorted(set(document) - names - {"schema_version"})
        missing = sorted({"op", "layout", "dtype", "axes"} - set(document))
        if unknown or missing:
            raise ValueError(
                f"Expected the fields of a case but got unknown {unknown} and missing {missing}; "
                "copy one from .parity/runs/<id>/cases."
            )
        values = {name: document[name] for name in names if name in document}
        for name, value in values.items():
            values[name] = _checked(name, value)
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> Case:
        """Read a case file; raises ValueError in one sentence when it is absent or malformed."""
        try:
            return cls.from_dict(json.loads(given_text(path)))
        except OSError as error:
            raise ValueError(
                f"Expected a case file at {path} but got {error.strerror}; "
                "list the recorded cases with `parity replay --list`."
            ) from error
        except json.JSONDecodeError as error:
            raise ValueError(
                f"Expected JSON in {path} but got {error}; copy one from .parity/runs/<id>/cases."
            ) from error


_MAPPINGS = ("axes", "flags", "variants", "tile")
_COUNTS = ("lengths", "gaps")
_INTEGERS = ("tail", "cp_size", "cp_rank", "seed")


def _checked(name: str, value: Any) -> Any:
    if name in _MAPPINGS and isinstance(value, dict):
        if name == "axes" and not all(_is_count(item) for item in value.values()):
            raise ValueError(f"Expected whole numbers >= 0 in case field 'axes' but got {value!r}.")
        return dict(value)
    if name in _COUNTS and isinstance(value, list) and all(_is_count(item) for item in value):
        return tuple(value)
    if name in _INTEGERS and _is_count(value):
        return value
    if name in ("op", "layout", "dtype", "table_dtype", "halves") and isinstance(value, str):
        return value
    raise ValueError(
        f"Expected a legal value for case field {name!r} but got {value!r}; "
        "copy one from .parity/runs/<id>/cases."
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
