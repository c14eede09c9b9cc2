"""Text of others in Markdown: neither markup nor a link nor a mention can begin in it."""

from __future__ import annotations

from .plain import plain

LONGEST = 1_000  # characters of one text
HARMLESS = " ,;()%'"  # punctuation with which nothing begins in Markdown or on GitHub


def code_of(text: str) -> str:
    """As code; unlike between backticks, a bar needs no mark inside a table."""
    return f"<code>{text_of(text)}</code>" if text else ""


def text_of(text: str) -> str:
    """Punctuation marks as entities, and a zero-width space after what begins a mention."""
    more = len(text) - LONGEST
    cut = f"{text[:LONGEST]} … {more} more characters" if more > 0 else text
    return "".join(map(_entity, plain(cut))).replace("&#64;", "&#64;&#8203;")


def _entity(character: str) -> str:
    if character.isalnum() or character in HARMLESS or ord(character) > 127:
        return character
    return f"&#{ord(character)};"
