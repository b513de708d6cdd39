"""Follows a value in a function: to which variables it is assigned, which calls get it, and whether it is returned."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

ADDING: Final = frozenset({"append", "appendleft", "extend", "add", "insert", "update"})
"""Methods that put their arguments into the object."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Argument(NamedTuple):
    """A value that a call passes on."""

    callee: ast.expr
    value: ast.expr
    place: int | str
    """Position, or name of the parameter."""


class Flow(NamedTuple):
    """The paths of one function or module, such as ``loss`` or ``self.best``, and what becomes of them."""

    steps: Sequence[tuple[frozenset[str], frozenset[str]]]
    """Paths that get a value, and the paths from which it is computed."""
    returned: frozenset[str]
    arguments: Sequence[Argument]

    def reached(self, paths: Collection[str]) -> set[str]:
        """Return the paths, and all others whose value is computed from them."""
        found = set(paths)
        while more := [
            to for to, of in self.steps if not to <= found and any(overlap(a, b) for a in found for b in of)
        ]:
            found.update(*more)
        return found

    def is_returned(self, paths: Collection[str]) -> bool:
        """Return whether the function returns one of the paths, or something computed from it."""
        return any(overlap(a, b) for a in paths for b in self.returned)


def flow_of(scope: ast.AST) -> Flow:
    """Return what becomes of the values of a function or module, without the functions in it."""
    nodes = list(within(scope))
    steps = [(frozenset(to), frozenset(paths_in(value))) for node in nodes for to, value in _steps(node)]
    results = [node.value for node in nodes if isinstance(node, ast.Return | ast.Yield) and node.value is not None]
    returned = {path for value in results for path in paths_in(value)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return Flow(steps, frozenset(returned), [one for call in calls for one in _arguments(call)])


def _steps(node: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield targets_of(node), node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield loop_targets(node), node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ADDING:
        yield from ((_changed(node.func.value), part) for part in _values(node))


def loop_targets(loop: ast.For | ast.AsyncFor | ast.comprehension) -> set[str]:
    """Return the variables of a loop that get values, without keys and positions: ``v`` in ``for k, v in found.items()``."""
    target, source = loop.target, loop.iter
    called = source.func if isinstance(source, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name == "keys":
        return set()
    if name in ("items", "enumerate") and isinstance(target, ast.Tuple):
        return {path for part in target.elts[1:] for path in paths_in(part)}
    return paths_in(target)


def targets_of(node: ast.AST) -> set[str]:
    """Return the paths that a statement changes: ``n = …``, ``self.n += …``, ``losses[k] = …`` and ``losses.append(…)``."""
    if isinstance(node, ast.Assign):
        return {path for target in node.targets for path in _changed(target)}
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return _changed(node.target)
    if isinstance(node, ast.Expr):
        return {path for part in ast.walk(node) if isinstance(part, ast.Call) for to, _ in _steps(part) for path in to}
    return set()


def _changed(target: ast.expr) -> set[str]:
    """Return what an assignment changes: in ``losses[k] = x`` that is ``losses``, not ``k``."""
    if isinstance(target, ast.Subscript | ast.Starred):
        return _changed(target.value)
    if isinstance(target, ast.Tuple | ast.List):
        return {path for part in target.elts for path in _changed(part)}
    return paths_in(target)


def _arguments(call: ast.Call) -> Iterator[Argument]:
    for position, value in enumerate(call.args):
        if isinstance(value, ast.Starred):
            break  # the position of those behind it is unknown
        yield Argument(call.func, value, position)
    yield from (Argument(call.func, one.value, one.arg) for one in call.keywords if one.arg is not None)


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def paths_in(node: ast.AST) -> set[str]:
    """Return the variables and attributes that an expression names: ``self.best`` for ``self.best - 1``."""
    path = path_of(node)
    if path is not None:
        return {path}
    return {found for child in ast.iter_child_nodes(node) for found in paths_in(child)}


def path_of(node: ast.AST) -> str | None:
    """Return the name of a variable, or the path of its attribute. None for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := path_of(node.value)) is not None:
        return f"{owner}.{node.attr}"
    return None


def overlap(one: str, other: str) -> bool:
    """Return whether two paths are equal, or one is an attribute of the other."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a scope, without what is inside functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from within(child)
