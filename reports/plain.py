"""Text of others, spelled so that no control character reaches a reader."""

from __future__ import annotations

from typing import Any


def plain(text: object) -> str:
    """Text with every character that does not print spelled out: controls, line ends, and those
    that turn the direction of writing."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


def spelled(value: Any) -> Any:
    """JSON values with every text in them, names of fields too, made :func:`plain`."""
    if isinstance(value, dict):
        return {plain(name): spelled(item) for name, item in value.items()}
    if isinstance(value, list):
        return [spelled(item) for item in value]
    return plain(value) if isinstance(value, str) else value
