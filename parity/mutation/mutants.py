"""All mutants of some sources: each one file with one place changed."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from random import Random

from .code import Scope, scopes
from .faults import KERNEL_FAULTS, ROTATION_FAULTS, Fault, text
from .generic import GENERIC_FAULTS
from .packing import PACKING_FAULTS
from .wrappers import WRAPPER_FAULTS

# Where two make the same change, the first gives it its name.
FAULTS: dict[str, Fault] = {
    **KERNEL_FAULTS, **PACKING_FAULTS, **WRAPPER_FAULTS, **ROTATION_FAULTS, **GENERIC_FAULTS,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    ``start`` and ``end`` are offsets in bytes of what ``replacement`` replaces; ``first`` and
    ``last`` the lines of ``statement``.  ``nth`` tells equal places of one statement apart.
    """

    file: str
    function: str
    fault: str
    statement: str
    original: str
    changed: str
    nth: int
    start: int
    end: int
    first: int
    last: int
    replacement: str

    @property
    def id(self) -> str:
        """Twelve hex digits that no change elsewhere in the file moves."""
        place = (
            self.file, self.function, self.fault, self.statement, self.original, self.changed,
            str(self.nth),
        )  # fmt: skip
        return hashlib.sha256("\0".join(place).encode()).hexdigest()[:12]

    def apply(self, source: bytes) -> bytes:
        """The file with the bug in it."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]


def mutants(sources: Mapping[str, bytes], start: Iterable[str]) -> list[Mutant]:
    """Every mutant of the functions that the functions named ``start`` may reach, in file order.

    ``sources`` maps file names to contents.  Two faults that make the same change count once,
    under the name that says more.
    """
    trees = {file: ast.parse(source) for file, source in sources.items()}
    return [
        mutant
        for file, found in scopes(trees, start).items()
        for scope in found
        for mutant in _of(file, sources[file], scope)
    ]


def _of(file: str, source: bytes, scope: Scope) -> Iterator[Mutant]:
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    seen: set[tuple[int, int, str]] = set()
    count: Counter[tuple[str, ...]] = Counter()
    for node in scope.nodes():
        for fault, change in _changes(scope, node):
            changed = ast.unparse(change) if isinstance(change, ast.AST) else change
            start = lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            statement, first, last = _statement(scope, node)
            key = (fault, statement, text(node), changed)
            if (start, end, _normal(changed)) in seen or _normal(changed) == _normal(text(node)):
                continue
            seen.add((start, end, _normal(changed)))
            replacement = f"({changed})" if isinstance(node, ast.expr) else changed
            count[key] += 1
            yield Mutant(
                file, scope.name, *key, count[key], start, end, first, last, replacement
            )  # fmt: skip


def _changes(scope: Scope, node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    for name, fault in FAULTS.items():
        if scope.is_kernel or name not in KERNEL_FAULTS:
            yield from ((name, change) for change in fault(scope, node))


def _statement(scope: Scope, node: ast.AST) -> tuple[str, int, int]:
    """The statement of a node, its first and last line; of one with a body, what is before that."""
    around = (node, *scope.above(node))
    statement = next((item for item in around if isinstance(item, ast.stmt)), scope.node)
    if statement is scope.node:  # a decorator matters where the function runs
        return "", scope.node.body[0].lineno, scope.node.end_lineno or 0
    body = getattr(statement, "body", None)
    last = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno
    return text(statement).splitlines()[0], statement.lineno, last or statement.lineno


def _normal(code: str) -> str:
    """One spelling of a piece of code."""
    return ast.unparse(ast.parse(code))


def sample(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """About ``count`` mutants, the classes in turn, so that none is left out; in file order."""
    random = Random(seed)
    by_fault: dict[str, list[Mutant]] = {}
    for mutant in random.sample(found, len(found)):
        by_fault.setdefault(mutant.fault, []).append(mutant)
    turns = (turn for turn in zip_longest(*(by_fault[name] for name in sorted(by_fault))))
    chosen = [mutant for turn in turns for mutant in turn if mutant][:count]
    return [mutant for mutant in found if mutant in set(chosen)]
