"""A few nodes of a module's syntax tree, and what stands in their place: however its source is laid out."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

Nodes: TypeAlias = Sequence[ast.AST]


@dataclass(frozen=True, slots=True)
class Patch:
    """Python for an expression or for statements of a module, and what stands there instead.

    `...` is whatever is there: any expression, or all statements that are left of a block. In `new`, each stands for
    what it is in `old`, in order. Handlers and cases are written with the `try: ...` and the `match ...:` around them.
    """

    module: str
    old: str
    new: str

    def apply(self, tree: ast.Module) -> None:
        """Raises ValueError where `old` is not in the tree once."""
        old, new = _nodes(self.old), _nodes(self.new)
        if len({_is_expression(old), _is_expression(new)}) == 2:
            old, new = (ast.parse(textwrap.dedent(text)).body for text in (self.old, self.new))
        found = [*_places(tree, old)]
        if len(found) != 1:
            raise ValueError(f"{self.module} has {len(found)} times, not once: {self.old!r}")
        parent, field, at, captured = found[0]
        there = iter(captured)
        put: list[Any] = []
        for node in new:
            filled = _Filling(there).visit(deepcopy(node))
            put += filled if isinstance(filled, list) else [filled]
        if at is None:
            setattr(parent, field, *put)
        else:
            getattr(parent, field)[at : at + len(old)] = put


def _nodes(text: str) -> Nodes:
    body = ast.parse(textwrap.dedent(text)).body
    match body:
        case [ast.Try(body=[rest], handlers=handlers)] if _is_any(rest):
            return handlers
        case [ast.Match(subject=subject, cases=cases)] if _is_any(subject):
            return cases
        case [ast.Expr(value=value)]:
            return [value]
    return body


def _is_expression(nodes: Nodes) -> bool:
    return len(nodes) == 1 and isinstance(nodes[0], ast.expr)


def _is_any(node: ast.AST) -> bool:
    while isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _places(tree: ast.Module, old: Nodes) -> Iterator[tuple[ast.AST, str, int | None, list[Any]]]:
    """Where nodes follow each other: the node around them, its field, the place in that, and what each `...` is."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            is_list = isinstance(value, list)
            siblings: list[Any] = value if isinstance(value, list) else [value]
            for at in range(len(siblings) - len(old) + 1):
                captured: list[Any] = []
                if all(_fits(a, b, captured) for a, b in zip(old, siblings[at:], strict=False)):
                    yield parent, field, at if is_list else None, captured


def _fits(pattern: Any, there: Any, captured: list[Any]) -> bool:
    if isinstance(pattern, list) and isinstance(there, list):
        has_rest = bool(pattern) and isinstance(pattern[-1], ast.Expr) and _is_any(pattern[-1])
        told = pattern[:-1] if has_rest else pattern
        if len(there) <= len(told) if has_rest else len(there) != len(told):
            return False
        fits = all(_fits(a, b, captured) for a, b in zip(told, there, strict=False))
        captured += [there[len(told) :]] if has_rest else []
        return fits
    if not isinstance(pattern, ast.AST):
        return bool(pattern == there and type(pattern) is type(there))
    if isinstance(there, ast.expr) and _is_any(pattern):
        captured.append(there)
        return True
    return type(pattern) is type(there) and all(
        _fits(value, getattr(there, field), captured) for field, value in ast.iter_fields(pattern)
    )


class _Filling(ast.NodeTransformer):
    """Puts what was there in the place of each `...`."""

    def __init__(self, there: Iterator[Any]) -> None:
        self._there = there

    def visit_Expr(self, node: ast.Expr) -> Any:
        return next(self._there) if _is_any(node) else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return next(self._there) if _is_any(node) else node
