"""Determines from a program's source whether its control flow or its sizes depend on a number that it reads."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.dry_run.branches import Span, contains, span_of
from vramscope.dry_run.value_flow import (
    Argument,
    Flow,
    flow_of,
    loop_targets,
    overlap,
    path_of,
    paths_in,
    targets_of,
    within,
)

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


class _Scope(NamedTuple):
    """A function or module."""

    node: ast.AST
    flow: Flow
    deciding: frozenset[str]
    """Paths on whose values its course depends, or that of another method of its class."""
    lengths: frozenset[str]


class _Statement(NamedTuple):
    span: Span
    scope: _Scope
    decides: bool = False
    """Whether each value that it reads is used in a deciding expression."""
    targets: frozenset[str] = frozenset()
    """Paths that it changes."""
    is_length: bool = False
    """Whether each value that it reads is a length."""
    deciding: Sequence[Span] = ()
    """Its own deciding expressions. Of several values in one line, those in or around them count."""
    lengths: Sequence[_Length] = ()
    """Its own expressions that are lengths."""
    arguments: Sequence[Argument] = ()
    """Its own arguments of calls."""
    is_return: bool = False
    numbers: Sequence[Span] = ()
    """Expressions that are the number which the function returns, or its parts: ``int(x) + 1``."""


class Destination(NamedTuple):
    """Where the value of an expression goes from its function."""

    arguments: Sequence[Argument]
    """Arguments of other calls that contain the value."""
    is_returned: bool
    is_returned_number: bool
    """Whether the returned value is this number, or computed from it by adding and rounding."""


@functools.lru_cache(maxsize=1024)
def decides(file: str, line: int, reading: Span | None = None) -> bool:
    """Return whether a line uses its value in a condition, a comparison, an index or a conversion to an integer.

    If the value is assigned to a variable, all uses of that variable in the function count, and of what is computed from it. An
    attribute of ``self`` counts in all methods of the class. True if the source cannot be read.

    reading   the expression that reads the value, if it is known: a line may read several
    """
    found = _statements(file)
    if found is None:
        return True
    return any(
        one.decides or _is_beside(one.deciding, reading) or _is_deciding(one.scope, one.targets)
        for one in _at(found, line, reading)
    )


def _is_deciding(scope: _Scope, paths: frozenset[str]) -> bool:
    reached = scope.flow.reached(paths) if paths else ()
    return any(overlap(path, other) for path in reached for other in scope.deciding)


@functools.lru_cache(maxsize=1024)
def destination(file: str, line: int, reading: Span) -> Destination:
    """Return where the value of an expression goes. Nowhere, if the source cannot be read."""
    arguments: list[Argument] = []
    is_returned = is_number = False
    for one in _at(_statements(file) or (), line, reading):
        reached = one.scope.flow.reached(one.targets) if one.targets else set()
        arguments += [part for part in one.arguments if contains(span_of(part.value), reading)]
        arguments += _arguments_with(one.scope.flow, reached)
        is_returned |= one.is_return or one.scope.flow.is_returned(reached)
        is_number |= any(contains(reading, part) or part == reading for part in one.numbers)
    return Destination(arguments, is_returned, is_number)


def _arguments_with(flow: Flow, paths: set[str]) -> list[Argument]:
    return [
        one for one in flow.arguments if any(overlap(path, other) for path in paths for other in paths_in(one.value))
    ]


@functools.lru_cache(maxsize=1024)
def destination_of_argument(file: str, line: int, place: int | str) -> tuple[bool, Sequence[Argument]]:
    """Return whether the function at this line decides by one of its arguments, and to which calls it passes it on.

    line   first line of the function, with its decorators
    """
    for one in _statements(file) or ():
        node = one.scope.node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or line != _first_line(node):
            continue
        names = [part.arg for part in (*node.args.posonlyargs, *node.args.args)]
        name = place if isinstance(place, str) else names[place] if place < len(names) else None
        if name is None:
            return False, ()
        return _is_deciding(one.scope, frozenset({name})), _arguments_with(
            one.scope.flow, one.scope.flow.reached({name})
        )
    return False, ()


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


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
    near = [one for one in found if one.span[0] <= line <= one.span[2]]
    return [one for one in near if reading is not None and contains(one.span, reading)] or near


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


def _of(node: ast.AST, shared: frozenset[str] = frozenset()) -> Iterator[_Statement]:
    """Yield the simple statements of a function or a module, and the heads of its compound ones.

    shared   paths by which a method of the same class decides
    """
    lengths = frozenset(path for part, _ in _lengths(node) for path in paths_in(part))
    scope = _Scope(node, flow_of(node), _deciding_paths(node) | shared, lengths)
    for part in within(node):
        if isinstance(part, ast.ClassDef):
            methods = (one for one in part.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            of_class = {path for one in methods for path in _deciding_paths(one) if path.startswith("self.")}
            yield from _of(part, frozenset(of_class))
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _of(part, shared)
        elif isinstance(part, ast.If | ast.While | ast.IfExp | ast.Assert):
            has_reads = any(any(_reads(one)) for one in _undecided(part.test))
            yield _head(scope, part.test)._replace(decides=has_reads)
        elif isinstance(part, ast.For | ast.AsyncFor):
            yield _head(scope, part.iter)._replace(targets=frozenset(loop_targets(part)))
        elif isinstance(part, ast.stmt) and not hasattr(part, "body"):
            targets = frozenset(targets_of(part))
            assigned = targets if not isinstance(part, ast.Expr) else frozenset()
            yield _head(scope, part)._replace(
                targets=targets,
                is_length=any(overlap(path, other) for path in assigned for other in lengths),
                is_return=any(isinstance(one, ast.Return | ast.Yield) for one in ast.walk(part)),
                numbers=_numbers(part, scope),
            )


def _head(scope: _Scope, part: ast.expr | ast.stmt) -> _Statement:
    """Return a statement with what its own expressions do."""
    own = ast.Expr(part) if isinstance(part, ast.expr) else part
    return _Statement(
        span_of(part),
        scope,
        deciding=_reading_deciding(own),
        lengths=_reading_lengths(own),
        arguments=flow_of(own).arguments,
    )


def _deciding_paths(scope: ast.AST) -> frozenset[str]:
    return frozenset(path for part in _deciding(scope) for path in paths_in(part))


def _numbers(statement: ast.stmt, scope: _Scope) -> list[Span]:
    """Return the parts of the number that a statement returns, or assigns to a variable that is returned as it is."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        returned = [one.value for one in within(scope.node) if isinstance(one, ast.Return)]
        if not any(isinstance(one, ast.Name) and one.id == statement.targets[0].id for one in returned):
            return []
    elif not isinstance(statement, ast.Return):
        return []
    return [span_of(part) for part in _number_parts(statement.value)]


def _number_parts(node: ast.expr | None) -> Iterator[ast.expr]:
    if node is not None:
        yield node
    if isinstance(node, ast.Call) and _called(node) in TO_INTEGERS:
        for part in node.args:
            yield from _number_parts(part)
    elif isinstance(node, ast.BinOp):
        yield from _number_parts(node.left)
        yield from _number_parts(node.right)


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
    for node in within(scope):
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
    """Return the arguments of a call that are sizes of a range, of a new tensor, or of the result of ``topk()``."""
    if _called(call) == "range":
        return call.args if len(call.args) == 1 else []
    if _called(call) == "topk":
        is_function = isinstance(call.func, ast.Attribute) and path_of(call.func.value) == "torch"
        return [*call.args[is_function : is_function + 1], *(one.value for one in call.keywords if one.arg == "k")]
    if _called(call) not in MAKING:
        return []
    return call.args[:1] if _called(call).endswith("full") else call.args


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


def _deciding(scope: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions on which the control flow, a size or a position depends."""
    for node in within(scope):
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
