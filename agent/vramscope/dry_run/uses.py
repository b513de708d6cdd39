"""Determines from a program's source whether its control flow or its sizes depend on a number that it reads."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TO_INTEGERS: Final = frozenset({"int", "round", "range", "ceil", "floor"})
"""Names of functions that convert a number to integers."""
TO_POSITIONS: Final = frozenset({"argsort", "argmax", "argmin", "nonzero", "where", "max"})
"""Names of functions that return positions or sizes for an array of numbers."""


class _Statement(NamedTuple):
    first_line: int
    last_line: int
    decides: bool


def decides(file: str, line: int) -> bool:
    """Return whether a line uses its value in a condition, a comparison, an index or a conversion to an integer.

    If the value is assigned to a variable, all uses of that variable in the function count. True if the source cannot be read.
    """
    found = _statements(file)
    if found is None:
        return True
    return any(one.decides for one in found if one.first_line <= line <= one.last_line)


@functools.lru_cache(maxsize=256)
def _statements(file: str) -> Sequence[_Statement] | None:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    return list(_of(tree))


def _of(scope: ast.AST) -> Iterator[_Statement]:
    """Yield the simple statements of a function or a module, and the heads of its compound ones."""
    names = {name for part in _deciding(scope) for name in _names(part)}
    for node in _within(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _of(node)
        elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield _Statement(node.test.lineno, node.test.end_lineno or node.test.lineno, True)
        elif isinstance(node, ast.For | ast.AsyncFor):
            head = ast.Expr(node.iter)
            yield _Statement(node.iter.lineno, node.iter.end_lineno or node.iter.lineno, _reads_and_decides(head))
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            assigned = {name for target in _targets(node) for name in _names(_container(target))}
            own = _reads_and_decides(node)
            yield _Statement(node.lineno, node.end_lineno or node.lineno, own or bool(assigned & names))


def _reads_and_decides(statement: ast.stmt) -> bool:
    """Return whether a value that this statement reads is used in a deciding expression of it.

    A read is a call. ``int(x)`` is both a read and a deciding expression.
    """
    for part in _deciding(statement):
        calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
        if any(node is not part or _called(node) in TO_INTEGERS for node in calls):
            return True
    return False


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a scope, without what is inside functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _within(child)


def _deciding(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions on which the control flow, a size or a position depends."""
    for node in _within(scope):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield node.test
        elif isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Call) and _called(node) in TO_INTEGERS | TO_POSITIONS:
            yield node


def _called(call: ast.Call) -> str:
    """Return the name of the function or method that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", ""))


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _container(target: ast.expr) -> ast.expr:
    """Return what an assignment changes: in ``losses[k] = x`` that is ``losses``, not ``k``."""
    return _container(target.value) if isinstance(target, ast.Subscript | ast.Attribute) else target


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
