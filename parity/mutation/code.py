"""Python sources as syntax trees: which functions are under test, and what an operator may ask."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

Function = ast.FunctionDef


@dataclass(frozen=True)
class Scope:
    """One function under test: qualified name, tree, and the fields of the tuples it may be given.

    ``fields`` maps the name of each NamedTuple of the sources to the annotations of its fields.
    """

    name: str
    node: Function
    fields: Mapping[str, Mapping[str, str]]
    ctx_attributes: frozenset[str]

    @cached_property
    def is_kernel(self) -> bool:
        """Whether Triton compiles it."""
        return any("jit" in ast.unparse(item) for item in self.node.decorator_list)

    @cached_property
    def parameters(self) -> list[str]:
        """Names of all parameters, in order."""
        arguments = self.node.args
        return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    @cached_property
    def names(self) -> frozenset[str]:
        """Everything bound in the function."""
        names = (node for node in ast.walk(self.node) if isinstance(node, ast.Name))
        stored = (name.id for name in names if isinstance(name.ctx, ast.Store))
        return frozenset((*self.parameters, *stored))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Every node's parent."""
        return {c: node for node in ast.walk(self.node) for c in ast.iter_child_nodes(node)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def within(self, node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
        """Whether one of the nodes around ``node`` is of one of these kinds."""
        return any(isinstance(item, kinds) for item in self.above(node))

    def annotation(self, parameter: str) -> str:
        """The annotation of a parameter, or an empty string."""
        arguments = self.node.args
        for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if item.arg == parameter and item.annotation:
                return ast.unparse(item.annotation)
        return ""

    def nodes(self) -> Iterator[ast.AST]:
        """The decorators, then all of the body that says what is computed.

        Left out: the docstring, annotations, and what only a message shows (``raise``, strings).
        """
        yield from self.node.decorator_list
        waiting: list[ast.AST] = list(reversed(self.node.body))
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Raise, ast.JoinedStr)) or _is_text(node):
                continue
            yield node
            children = list(ast.iter_child_nodes(node))
            hidden = {getattr(node, "annotation", None), getattr(node, "msg", None)}
            waiting += reversed([child for child in children if child not in hidden])


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def scopes(trees: Mapping[str, ast.Module], start: Iterable[str]) -> dict[str, list[Scope]]:
    """The functions under test by file: all that the functions named ``start`` may reach, by name.

    References, contracts and what else a module holds are not reached, so they are left alone.
    """
    reached = _reached(trees, start)
    fields = {name: found for tree in trees.values() for name, found in _fields(tree)}
    own = {file: fields | dict(_fields(tree)) for file, tree in trees.items()}
    attributes = frozenset(name for tree in trees.values() for name in _ctx_attributes(tree))
    return {
        file: [
            Scope(name, node, own[file], attributes)
            for name, node in _functions(tree)
            if (file, name.split(".")[0]) in reached
        ]
        for file, tree in trees.items()
    }


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Functions of a module and methods of its classes, with qualified names."""
    for item in _top_level(tree):
        if isinstance(item, Function):
            yield item.name, item
        elif isinstance(item, ast.ClassDef):
            yield from ((f"{item.name}.{m.name}", m) for m in item.body if isinstance(m, Function))


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of a module, those behind an ``if`` or in a ``try`` too."""
    waiting = list(reversed(tree.body))
    while waiting:
        item = waiting.pop()
        yield item
        if isinstance(item, (ast.If, ast.Try)):
            waiting += reversed([*item.body, *item.orelse])


def _reached(trees: Mapping[str, ast.Module], start: Iterable[str]) -> set[tuple[str, str]]:
    """(file, name) of every function and class that can be reached."""
    defined = {
        (file, item.name): item
        for file, tree in trees.items()
        for item in _top_level(tree)
        if isinstance(item, (Function, ast.ClassDef))
    }
    imported = {file: set(_imported(tree)) for file, tree in trees.items()}
    files: dict[str, list[str]] = {}
    for file, name in defined:
        files.setdefault(name, []).append(file)
    reached: set[tuple[str, str]] = set()
    waiting = [(file, name) for name in start for file in files.get(name, ())]
    while waiting:
        place = waiting.pop()
        if place in reached:
            continue
        reached.add(place)
        for name in _mentions(defined[place], imported[place[0]]):
            own = (place[0], name)
            waiting += [own] if own in defined else [(file, name) for file in files.get(name, ())]
    return reached


def _imported(tree: ast.Module) -> Iterator[str]:
    """The names that a module binds by imports."""
    for node in _top_level(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (item.asname or item.name.partition(".")[0] for item in node.names)


def _mentions(node: ast.AST, imported: set[str]) -> Iterator[str]:
    """Names that are used, and attributes of what is imported."""
    for item in ast.walk(node):
        match item:
            case ast.Name(name):
                yield name
            case ast.Attribute(ast.Name(module), name) if module in imported:
                yield name


def _fields(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    for item in tree.body:
        if isinstance(item, ast.ClassDef) and "NamedTuple" in map(ast.unparse, item.bases):
            fields = [field for field in item.body if isinstance(field, ast.AnnAssign)]
            yield item.name, {ast.unparse(f.target): ast.unparse(f.annotation) for f in fields}


def _ctx_attributes(tree: ast.Module) -> Iterator[str]:
    """What the autograd functions of a module keep on ``ctx``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("ctx"), name, ast.Store()):
                yield name
