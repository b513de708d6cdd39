"""Truth values with which a program goes on: read from its source, where the device has no answer."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path


def value_to_go_on(file: str, line: int) -> bool | None:
    """Return the truth value of the expression in a line with which the work goes on, None if the line does not tell.

    ``if x: raise`` goes on with False, and so do ``continue`` and ``break``; ``assert x``, ``while x`` and any other ``if x``
    go on with True. ``not`` reverses it.
    """
    return _values(file).get(line)


@functools.lru_cache(maxsize=256)
def _values(file: str) -> Mapping[int, bool]:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            _note(node.test, not _leaves(node.body[-1]), found)
        elif isinstance(node, ast.While | ast.Assert | ast.IfExp):
            _note(node.test, True, found)
    return found


def _leaves(last: ast.stmt) -> bool:
    """Whether a block that ends with this statement leaves its loop or fails: ``raise``, ``assert False``, ``sys.exit()``."""
    if isinstance(last, ast.Continue | ast.Break | ast.Raise):
        return True
    if isinstance(last, ast.Assert):
        return isinstance(last.test, ast.Constant) and not last.test.value
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)):
        return False
    name, first = ast.unparse(last.value.func).rpartition(".")[2], next(iter(last.value.args), None)
    return name == "exit" or ("assert" in name and isinstance(first, ast.Constant) and first.value is False)


def _note(node: ast.expr, wanted: bool, found: dict[int, bool]) -> None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _note(node.operand, not wanted, found)
    elif isinstance(node, ast.BoolOp):
        for part in node.values:
            _note(part, wanted, found)
    else:
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            found.setdefault(line, wanted)
