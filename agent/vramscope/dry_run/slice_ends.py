"""Numbers that are nothing but ends of slices, as in ``x[:, :n]``, or other lengths. The larger they are, the more is needed."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.dry_run.branches import Span, span_of
from vramscope.dry_run.uses import sizes_of

GROWING: Final = frozenset({"int", "round", "ceil", "max", "min"})
"""Names of functions whose result does not fall if an argument grows."""


def is_slice_end(file: str, reading: Span | None) -> bool:
    """Return whether an expression reads a number that is the end of a slice without a start, and nothing else.

    The end must not fall if the number grows: ``n + 1`` is such an end, ``total - n`` is not. False before Python 3.11, which does
    not report the expression.
    """
    return reading is not None and reading in _read_by(file).ends


def is_growing_length(file: str, reading: Span | None) -> bool:
    """Return whether an expression reads a number that is lengths, none of which falls if it grows, and nothing else.

    ``torch.zeros(n + 1)`` has such a length, ``torch.zeros(total - n)`` has not. False before Python 3.11.
    """
    return reading is not None and reading in _read_by(file).lengths


class _ReadAs(NamedTuple):
    """Expressions of a file that read such numbers."""

    ends: frozenset[Span]
    lengths: frozenset[Span]


@functools.lru_cache(maxsize=256)
def _read_by(file: str) -> _ReadAs:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return _ReadAs(frozenset(), frozenset())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    scopes = (tree, *functions)
    return _ReadAs(
        frozenset(span for scope in scopes for span in _of(scope, _slices(scope))),
        frozenset(span for scope in scopes for span in _of(scope, [*_slices(scope), *_sizes(scope)])),
    )


def _slices(scope: ast.AST) -> Iterator[tuple[ast.expr, Sequence[ast.expr]]]:
    """Yield slices, with their ends. The slice reads its end, if it is a single tensor."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and (ends := _ends_of(node)):
            yield node, ends


def _sizes(scope: ast.AST) -> Iterator[tuple[ast.expr, Sequence[ast.expr]]]:
    """Yield calls, with the lengths among their arguments."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Call):
            yield from ((node, [part]) for part in sizes_of(node))


def _of(scope: ast.AST, found: Iterable[tuple[ast.expr, Sequence[ast.expr]]]) -> Iterator[Span]:
    """Yield the expressions of a function that read such a number: in its place, or before it is assigned to a variable."""
    carried: set[ast.AST] = set()
    for owner, parts in found:
        carried.update(one for part in parts for one in _carrying(part))
        if len(parts) == 1:
            yield span_of(owner)  # a tensor as the end is read by the subscript, and one as a size by the call
    yield from (span_of(part) for part in carried if isinstance(part, ast.expr))
    elsewhere = {name for node in ast.walk(scope) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    uses = _uses(scope)
    pending = [one for one in _assignments(scope) if uses.get(one[0])]
    while ready := [one for one in pending if carried.issuperset(uses[one[0]])]:
        pending = [one for one in pending if one not in ready]
        for name, value in ready:
            if name not in elsewhere:
                parts = list(_carrying(value))
                carried.update(parts)  # a variable among them may carry another number
                yield from (span_of(part) for part in parts)


def _assignments(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                yield targets[0].id, node.value


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
    elif isinstance(end, ast.Tuple | ast.List):
        parts = end.elts
    elif isinstance(end, ast.BinOp):
        is_negative = any(isinstance(part, ast.UnaryOp) for part in (end.left, end.right))
        both = isinstance(end.op, ast.Add) or (isinstance(end.op, ast.Mult) and not is_negative)
        left = isinstance(end.op, ast.Sub) or (isinstance(end.op, ast.Div | ast.FloorDiv) and not is_negative)
        parts = [end.left, end.right] if both else [end.left] if left else []
    else:
        return
    for part in parts:
        yield from _carrying(part)


def _uses(scope: ast.AST) -> Mapping[str, Sequence[ast.AST]]:
    """Return for each variable where it is read, and changed as by ``n %= 8``."""
    changed = {node.target for node in ast.walk(scope) if isinstance(node, ast.AugAssign)}
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and (node in changed or not isinstance(node.ctx, ast.Store)):
            found.setdefault(node.id, []).append(node)
    return found
