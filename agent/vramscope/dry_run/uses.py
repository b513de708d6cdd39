"""Determines from a program's source whether its control flow or its sizes depend on a number that it reads."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.dry_run.branches import Span, contains, span_of

TO_INTEGERS: Final = frozenset({"int", "round", "range", "ceil", "floor"})
"""Names of functions that convert a number to integers."""
TO_POSITIONS: Final = frozenset({"argsort", "argmax", "argmin", "nonzero", "where", "max"})
"""Names of functions that return positions or sizes for an array of numbers."""

NOT_READING: Final = frozenset(
    {"isinstance", "issubclass", "hasattr", "callable", "len", "is_tensor", "is_available", "get_rank"}
)
"""Names of functions that do not read a value. A condition with no other call reads nothing."""
READING: Final = frozenset({"item", "tolist", "cpu", "numpy"})
"""Methods that read their tensor."""
FINITE: Final = frozenset({"isfinite", "isnan", "isinf"})
"""Names of functions that test whether a number is finite. For 0 they return what a healthy training gives."""


MAKING: Final = frozenset(
    {"zeros", "ones", "empty", "full", "rand", "randn", "arange", "new_zeros", "new_ones", "new_empty", "new_full"}
)
"""Names of functions that make a tensor of the size of their arguments."""


class _Length(NamedTuple):
    span: Span
    owner: Span
    """The call that it is a length of, which reads a tensor that is a length itself. The length if the call may read others."""
    reads: bool
    """Whether it reads a value, as far as the line alone says it."""


class _Statement(NamedTuple):
    span: Span
    decides: bool
    """Whether each value that it reads is used in a deciding expression."""
    is_length: bool = False
    """Whether each value that it reads is a length."""
    deciding: Sequence[Span] = ()
    """Its own deciding expressions. Of several values in one line, those in or around them count."""
    lengths: Sequence[_Length] = ()
    """Its own expressions that are lengths."""


def decides(file: str, line: int, reading: Span | None = None) -> bool:
    """Return whether a line uses its value in a condition, a comparison, an index or a conversion to an integer.

    If the value is assigned to a variable, all uses of that variable in the function count. True if the source cannot be read.

    reading   the expression that reads the value, if it is known: a line may read several
    """
    found = _statements(file)
    if found is None:
        return True
    return any(one.decides or _is_beside(one.deciding, reading) for one in _at(found, line, reading))


def is_length(file: str, line: int, reading: Span | None = None) -> bool:
    """Return whether a line uses its value as a length: ``x[:n]``, ``range(n)``, ``torch.zeros(n)``. With 0, nothing is left to do.

    If the value is assigned to a variable, all uses of that variable in the function count. False if the source cannot be read.
    """
    found = _statements(file) or ()
    return any(one.is_length or _reads_length(one.lengths, reading) for one in _at(found, line, reading))


def _reads_length(lengths: Sequence[_Length], reading: Span | None) -> bool:
    """Return whether an expression reads one of the lengths; with an unknown expression, whether there is one that reads."""
    if reading is None:
        return any(one.reads for one in lengths)
    return any(contains(one.span, reading) or one.owner == reading for one in lengths)


def _at(found: Sequence[_Statement], line: int, reading: Span | None) -> list[_Statement]:
    """Return the statement with the expression that reads, or all in the line."""
    within = [one for one in found if one.span[0] <= line <= one.span[2]]
    return [one for one in within if reading is not None and contains(one.span, reading)] or within


def _is_beside(parts: Sequence[Span], reading: Span | None) -> bool:
    """Return whether an expression is in one of the parts, or contains one; with an unknown expression, whether there are parts."""
    if reading is None:
        return bool(parts)
    return any(contains(part, reading) or contains(reading, part) for part in parts)


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
    lengths = {name for part, _ in _lengths(scope) if not _has_attribute(part) for name in _names(part)}
    for node in _within(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _of(node)
        elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield _Statement(
                span_of(node.test),
                any(any(_reads(part)) for part in _undecided(node.test)),
                lengths=_reading_lengths(ast.Expr(node.test)),
            )
        elif isinstance(node, ast.For | ast.AsyncFor):
            head = ast.Expr(node.iter)
            yield _Statement(
                span_of(node.iter), False, deciding=_reading_deciding(head), lengths=_reading_lengths(head)
            )
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            assigned = {name for target in _targets(node) for name in _names(_container(target))}
            yield _Statement(
                span_of(node),
                bool(assigned & names),
                bool(assigned & lengths),
                _reading_deciding(node),
                _reading_lengths(node),
            )


def _reading_deciding(statement: ast.stmt) -> list[Span]:
    """Return the deciding expressions of a statement that read a value.

    A read is a call. ``int(x)`` is both a read and a deciding expression.
    """
    before = _before_reads(statement)
    return [
        span_of(part)
        for part in _deciding(statement)
        if part not in before and any(node is not part or _called(node) in TO_INTEGERS for node in _reads(part))
    ]


def _reading_lengths(statement: ast.stmt) -> list[_Length]:
    """Return the lengths of a statement. Without a call that reads, a tensor may be one itself."""
    before = _before_reads(statement)
    reads = any(isinstance(node, ast.Call) and _called(node) in READING | TO_INTEGERS for node in ast.walk(statement))
    return [
        _Length(span_of(part), span_of(owner), not reads or any(_reads(part)))
        for part, owner in _lengths(statement)
        if part not in before
    ]


def _lengths(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the expressions that are lengths, each with the expression that reads it if it is a tensor itself.

    They are ends of slices without a start, and sizes of ranges and new tensors.
    """
    for node in _within(scope):
        reads_others = isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Call) and _called(node).endswith("full")
        )
        if isinstance(node, ast.Subscript):
            slices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            found: Sequence[ast.expr] = [
                one.upper
                for one in slices
                if isinstance(one, ast.Slice) and one.lower is None and one.upper is not None
            ]
        elif isinstance(node, ast.Call):
            found = sizes_of(node)
        else:
            continue
        # A negative end leaves something out; a constant is read from nowhere.
        parts = [part for part in found if not isinstance(part, ast.Constant | ast.UnaryOp)]
        yield from ((part, part if reads_others else node) for part in parts)


def sizes_of(call: ast.Call) -> Sequence[ast.expr]:
    """Return the arguments of a call that are sizes of a range or of a new tensor."""
    if _called(call) == "range":
        return call.args if len(call.args) == 1 else []
    if _called(call) not in MAKING:
        return []
    return call.args[:1] if _called(call).endswith("full") else call.args


def _has_attribute(part: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) for node in ast.walk(part))


def _before_reads(statement: ast.stmt) -> set[ast.AST]:
    """Return what is computed before a value is read: in ``(x > 3).sum().item()`` the comparison. What reads a value itself, such
    as the index in ``h[int(n)].item()``, is not among them."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    reading = {node for node in calls if _called(node) in READING | TO_INTEGERS}
    inner = {part for node in calls if _called(node) in READING for part in ast.walk(node.func)}
    return {part for part in inner if reading.isdisjoint(ast.walk(part))}


def _reads(part: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in an expression that may read a value."""
    for node in ast.walk(part):
        if isinstance(node, ast.Call) and _called(node) not in NOT_READING:
            yield node


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a scope, without what is inside functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _within(child)


def _deciding(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions on which the control flow, a size or a position depends."""
    for node in _within(scope):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield from _undecided(node.test)
        elif isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Call) and _called(node) in TO_INTEGERS | TO_POSITIONS:
            yield node


def _undecided(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands of a condition, without checks for finite numbers."""
    if isinstance(test, ast.BoolOp):
        for operand in test.values:
            yield from _undecided(operand)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _undecided(test.operand)
    elif not isinstance(test, ast.Call) or _called(test) not in FINITE:
        yield test


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
