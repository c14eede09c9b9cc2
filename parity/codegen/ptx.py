"""What PTX says: the text without what depends on names and places, and counts of instructions.

Pure text work.  The syntax is that of the PTX ISA, as LLVM's NVPTX back-end and Triton write it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEBUG_SECTION = re.compile(r"\.section\s+\.debug_\w+\s*\{[^}]*\}")
_PLACE = re.compile(r"^\s*(\.loc\b.*|\.file\b.*|\$L__(tmp|func_begin|func_end)\d+:)$", re.MULTILINE)
_FUNCTION = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([A-Za-z_$][\w$]*)")
_STATEMENT = re.compile(r"^(?:@!?%\w+\s+)?([a-z][\w.:]*)")
_ACCESS = re.compile(r"^(ld|st)\.(?!param\b)\S*\bglobal\b")
_ASYNC_COPY = re.compile(r"^(?:@!?%\w+\s+)?cp\.async\.c[ag]\.[^,]*,[^,]*,\s*(0x[0-9a-f]+|\d+)")
_BARRIER = re.compile(r"^(bar|barrier)\.(?!warp\b|arrive\b)")


@dataclass(frozen=True)
class Instructions:
    """Counts in the text of a kernel, each instruction once, however often a loop runs it.

    ``loads`` and ``stores`` count accesses to global memory by their width in bits for one thread,
    ``mix`` all instructions by operation and type (``fma.f32``).  ``fma`` are multiply-adds that
    round once: with contraction on, LLVM forms them, so that PTX shows them.
    """

    loads: dict[int, int]
    stores: dict[int, int]
    barriers: int
    fma: int
    mix: dict[str, int]


def normalise(ptx: str) -> str:
    """The PTX without comments, debug sections, source places, and with functions numbered.

    Two texts that agree after this assemble to the same machine code under the same options.
    """
    text = _DEBUG_SECTION.sub("", _COMMENT.sub("", ptx))
    text = _PLACE.sub("", text)
    # Longest first: the name of one function may begin with that of another.
    names = list(dict.fromkeys(_FUNCTION.findall(text)))
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(
            rf"(?<![\w$]){re.escape(name)}(?=_param_|[^\w$])", f"f{names.index(name)}", text
        )
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def count(ptx: str) -> Instructions:
    """Count the instructions of a text, normalised or not."""
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    mix: Counter[str] = Counter()
    barriers = 0
    for statement in _statements(ptx):
        found = _STATEMENT.match(statement)
        if found is None:
            continue
        operation = found[1]
        mix[_family(operation)] += 1
        barriers += bool(_BARRIER.match(operation))
        if access := _ACCESS.match(operation):
            (loads if access[1] == "ld" else stores)[_bits(operation)] += 1
        elif copied := _ASYNC_COPY.match(statement):
            loads[8 * int(copied[1], 0)] += 1
    fma = sum(number for name, number in mix.items() if name.startswith("fma."))
    return Instructions(dict(loads), dict(stores), barriers, fma, dict(sorted(mix.items())))


def _statements(ptx: str) -> Iterator[str]:
    """Every statement with an operation, one at a time, without braces that merely group."""
    body = _DEBUG_SECTION.sub("", _COMMENT.sub("", ptx))
    for line in body.splitlines():
        for statement in line.split(";"):
            stripped = statement.strip().lstrip("{").strip()
            if stripped and not stripped.startswith((".", "$", "}", "(", ")")):
                yield stripped


def _bits(operation: str) -> int:
    """Bits one thread moves with an access such as ``ld.global.v4.b32``."""
    parts = operation.split(".")
    vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v\d+", part)), 1)
    element = next(int(part[1:]) for part in reversed(parts) if re.fullmatch(r"[busf]\d+", part))
    return vector * element


def _family(operation: str) -> str:
    """The operation and its last type: ``fma.rn.f32`` is ``fma.f32``."""
    parts = operation.split(".")
    types = [part for part in parts[1:] if re.fullmatch(r"([busf]|bf)\d+(x2)?|pred", part)]
    return f"{parts[0]}.{types[-1]}" if types else parts[0]
