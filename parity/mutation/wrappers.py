"""Faults of autograd functions and of what a wrapper demands of its arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from .code import Scope
from .faults import by_name, called, text

ALLOCATIONS = ("empty", "empty_like", "zeros", "zeros_like", "new_empty", "new_zeros")


def contiguous_dropped(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """A tensor that keeps its strides."""
    match node:
        case ast.Call(ast.Attribute(value, "contiguous"), []):
            yield value


def gradient_written(scope: Scope, node: ast.AST) -> Iterator[str]:
    """The backward writes the gradient that it was given."""
    named = [name for name in scope.parameters if "grad" in name]
    gradients = scope.parameters[1:] if scope.name.endswith(".backward") else named
    if not gradients or "ctx" not in scope.parameters:
        return
    match node:
        case ast.Return(ast.expr()):
            yield from (f"{name}.neg_(); {text(node)}" for name in gradients)
        case ast.Call() if called(node) in ALLOCATIONS and f"{gradients[0]}.shape," in text(node):
            yield gradients[0]


def aliased(scope: Scope, node: ast.AST) -> Iterator[ast.AST | str]:
    """The memory of an argument where new memory is meant."""
    match node:
        case ast.Call(ast.Attribute(value, "clone"), []):
            yield value
        case ast.Call(ast.Attribute(value, "new_empty"), [shape]):
            yield f"{text(value)}.reshape({text(shape)})"
        case ast.Call(ast.Attribute(value, "new_empty_strided"), layout):
            yield f"{text(value)}.as_strided({text(*layout)})"
        case ast.Call(_, [ast.Attribute(ast.Name(name), "shape"), *_]) if _allocates(scope, node):
            yield name
        case ast.Call(_, [ast.Name(name)]) if _allocates(scope, node):
            yield name


def _allocates(scope: Scope, node: ast.AST) -> bool:
    return called(node) in ALLOCATIONS and scope.name.endswith("forward")


def guard_removed(scope: Scope, node: ast.AST) -> Iterator[str]:
    """What cannot be computed is not refused."""
    match node:
        case ast.If(_, [ast.Raise()], []):
            yield "pass"


def guard_as_assert(scope: Scope, node: ast.AST) -> Iterator[str]:
    """A refusal that ``python -O`` removes."""
    match node:
        case ast.If(test, [ast.Raise()], []):
            yield f"assert not ({text(test)})"


def wrong_saved_tensor(scope: Scope, node: ast.AST) -> Iterator[ast.AST | str]:
    """Another tensor saved for backward, or two of them exchanged."""
    match node:
        case ast.Call(func, [first, second, *rest]) if called(node) == "save_for_backward":
            yield ast.Call(func, [second, first, *rest], [])
            yield ast.Call(func, [first, first, *rest], [])
        case ast.Call(func, [ast.Starred(saved)]) if called(node) == "save_for_backward":
            name = text(saved)
            yield f"{text(func)}(*{name}[1::-1], *{name}[2:])"
            yield f"{text(func)}(*{name}[:1], *{name}[:1], *{name}[2:])"


def wrong_ctx_attribute(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Another attribute of ``ctx``, or another field of a tuple, than forward kept there."""
    match node:
        case ast.Assign([ast.Attribute(ast.Name("ctx"))], ast.Name(name)):
            fields = scope.fields.get(scope.annotation(name), {})
            for field, other in pairwise(fields):
                if fields[field] == fields[other]:
                    yield f"{text(*node.targets)} = {name}._replace({field}={name}.{other})"
        case ast.Attribute(ast.Name("ctx"), name, ast.Load()) if name in scope.ctx_attributes:
            yield from (f"ctx.{other}" for other in sorted(scope.ctx_attributes - {name}))


def autograd_call_removed(scope: Scope, node: ast.AST) -> Iterator[str]:
    """Autograd is not told what was written, saved, or cannot be differentiated."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("ctx")))):
            yield "pass"


def once_differentiable_dropped(scope: Scope, node: ast.AST) -> Iterator[str]:
    """A backward that autograd takes for differentiable."""
    if node in scope.node.decorator_list and text(node).endswith("once_differentiable"):
        yield "lambda function: function"


WRAPPER_FAULTS = by_name(
        contiguous_dropped, gradient_written, aliased, guard_removed, guard_as_assert,
        wrong_saved_tensor, wrong_ctx_attribute, autograd_call_removed,
        once_differentiable_dropped,
    )  # fmt: skip
