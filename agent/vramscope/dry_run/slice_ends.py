"""Numbers that are the end of a slice and nothing else, as in ``x[:, :n]``. Such a slice has the whole dimension at most."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vramscope.dry_run.branches import Span, span_of

GROWING: Final = frozenset({"int", "round", "ceil", "max", "min"})
"""Names of functions whose result does not fall if an argument grows."""


def is_slice_end(file: str, reading: Span | None) -> bool:
    """Return whether an expression reads a number that is the end of a slice without a start, and nothing else.

    The end must not fall if the number grows: ``n + 1`` is such an end, ``total - n`` is not. False before Python 3.11, which does
    not report the expression.
    """
    return reading is not None and reading in _ends(file)


@functools.lru_cache(maxsize=256)
def _ends(file: str) -> frozenset[Span]:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(span for scope in (tree, *functions) for span in _of(scope))


def _of(scope: ast.AST) -> Iterator[Span]:
    """Yield the expressions of a function that read such a number: in a slice, or before it is assigned to a variable."""
    carried: set[ast.AST] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and (ends := _ends_of(node)):
            carried.update(part for end in ends for part in _carrying(end))
            if len(ends) == 1:
                yield span_of(node)  # a tensor as the end is read by the subscript
    yield from (span_of(part) for part in carried if isinstance(part, ast.expr))
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            loads = _loads(scope, node.targets[0].id)
            if loads and carried.issuperset(loads):
                yield from (span_of(part) for part in _carrying(node.value))


def _ends_of(node: ast.Subscript) -> list[ast.expr]:
    """Return the ends of slices without a start. None if something else in the brackets may be read, too."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    ends = []
    for part in parts:
        if isinstance(part, ast.Slice):
            if not (part.lower is None and part.step is None):
                return []
            if part.upper is not None:
                ends.append(part.upper)
        elif not isinstance(part, ast.Constant):
            return []
    return ends


def _carrying(end: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of an expression from which its value follows, and does not fall if they grow."""
    yield end
    if isinstance(end, ast.Call):
        name = end.func.attr if isinstance(end.func, ast.Attribute) else getattr(end.func, "id", "")
        parts = end.args if name in GROWING else []
    elif isinstance(end, ast.BinOp):
        both = isinstance(end.op, ast.Add | ast.Mult)
        left = isinstance(end.op, ast.Sub | ast.Div | ast.FloorDiv)
        parts = [end.left, end.right] if both else [end.left] if left else []
    else:
        return
    for part in parts:
        yield from _carrying(part)


def _loads(scope: ast.AST, name: str) -> list[ast.AST]:
    return [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)
    ]
