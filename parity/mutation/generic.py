"""The usual operators of mutation testing, whatever a program is about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from .code import Scope
from .faults import by_name, text

COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(), ast.NotIn: ast.In(),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Add(), ast.FloorDiv: ast.Mult(),
    ast.Div: ast.Mult(), ast.Mod: ast.FloorDiv(), ast.Pow: ast.Mult(), ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
}  # fmt: skip


def comparison(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """A boundary included or not, or the opposite."""
    match node:
        case ast.Compare(left, [order, *more], right):
            yield ast.Compare(left, [COMPARISONS[type(order)], *more], right)


def arithmetic(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """Another operation on two numbers."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(op)], right)
        case ast.AugAssign(target, op, value) if type(op) in ARITHMETIC:
            yield ast.AugAssign(target, ARITHMETIC[type(op)], value)


def constant(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """The next number."""
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            yield ast.Constant(value + 1)


def boolean(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """The other truth value, connective or branch."""
    match node:
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand


def argument_swap(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """Two neighbours among the arguments of a call exchanged."""
    match node:
        case ast.Call(func, arguments, keywords):
            for index, (one, other) in enumerate(pairwise(arguments)):
                if text(one) != text(other):
                    swapped = [*arguments[:index], other, one, *arguments[index + 2 :]]
                    yield ast.Call(func, swapped, keywords)


GENERIC_FAULTS = by_name(comparison, arithmetic, constant, boolean, argument_swap)
