"""Derives from a program's source which truth value lets it continue, for values that an emulated device does not have."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from vramscope.process.frames import is_torch

CONVERTING: Final = frozenset({"bool", "int", "any", "all"})
"""Functions whose result has the truth value of their argument, or of its elements."""
Span = tuple[int, int, int, int]
"""First line, first column, last line and last column of a part of a file."""


class Question(NamedTuple):
    """An expression whose truth value the program reads."""

    text: str
    """Source of the expression, or of its line."""
    expected: bool | None
    """Value with which the normal work continues; None if the statement is unknown.

    It is False for ``if x: raise``, and also if the block ends with ``continue``, ``break``, a warning, or a ``return`` in
    PyTorch's own code. It is True for ``assert x``, ``while x`` and any other ``if x``. ``not`` reverses it.
    """
    is_check: bool = False
    """True if the other value only raises or warns. The memory of a training that goes on does not depend on it."""


class _Operand(NamedTuple):
    span: Span
    statement: Span
    question: Question
    arguments: Sequence[Span] = ()
    """Arguments of calls in it. A value that is read there is used for something else."""


def question_of(frame: FrameType) -> Question:
    """Return the expression that a frame evaluates now.

    If it is assigned to a variable, the question is the condition on that variable. If the frame returns the value, it is that of
    its caller, provided that the caller's condition is this call: an argument of another call is used there for something else.
    """
    found, above = own_question(frame), frame
    reverses = False
    while found.expected is None and (span := span_now(above)) is not None:
        goes = _destinations(above.f_code.co_filename).get(span)
        if goes is None:
            break
        reverses ^= goes.reverses
        if goes.condition is not None:
            return _reversed(goes.condition, reverses)
        if above.f_back is None:
            break
        above = above.f_back
        span = span_now(above)
        same = [one for one in _operands(above.f_code.co_filename) if one.span == span]
        if same:
            return _reversed(same[-1].question, reverses)
    return found


def _reversed(question: Question, reverses: bool) -> Question:
    if not reverses or question.expected is None:
        return question
    return question._replace(text=f"not {question.text}", expected=not question.expected)


class _Destination(NamedTuple):
    """Where a truth value goes that is no condition itself."""

    reverses: bool
    """Whether ``not`` is applied to it an odd number of times."""
    condition: Question | None
    """Condition on the variable to which it is assigned. None: it is returned."""


@functools.lru_cache(maxsize=256)
def _destinations(file: str) -> Mapping[Span, _Destination]:
    """Return where the expressions of a file go that it returns, or assigns to a variable with one condition."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[Span, _Destination] = {}
    conditions = {one.span: one.question for one in _operands(file)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in [tree, *functions]:  # the innermost function comes last
        nodes = list(ast.walk(scope))
        returned = {one.value for one in nodes if isinstance(one, ast.Return)}
        reads: dict[str, list[ast.Name]] = {}
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                reads.setdefault(node.id, []).append(node)
        for node in nodes:
            condition: Question | None = None
            if isinstance(node, ast.Return | ast.Lambda):
                value = node.value if isinstance(node, ast.Return) else node.body
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value, named = node.value, reads.get(node.targets[0].id, [])
                if returned.isdisjoint(named):
                    asked = [conditions[span_of(one)] for one in named if span_of(one) in conditions]
                    if len({one.expected for one in asked}) != 1:
                        continue
                    condition = asked[0]
            else:
                continue
            if value is not None:
                found.update((span_of(part), _Destination(no, condition)) for part, no in _truths(value, False))
    return found


def _truths(value: ast.expr, reverses: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield an expression, and the parts whose truth value it has or reverses: ``bool(x)``, ``not x`` and ``x and y``."""
    is_not = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    yield value, reverses ^ is_not  # ``not x`` itself reads x
    if isinstance(value, ast.UnaryOp) and is_not:
        yield from _truths(value.operand, not reverses)
    elif isinstance(value, ast.BoolOp):
        for part in value.values:
            yield from _truths(part, reverses)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in CONVERTING:
        for part in value.args:
            yield from _truths(part, reverses)


def own_question(frame: FrameType) -> Question:
    """Return the expression that a frame evaluates now. Without columns, it is the last operand of the line."""
    file = frame.f_code.co_filename
    operands = _operands(file)
    if (span := _span(frame.f_code, frame.f_lasti)) is not None:
        in_order = _in_order(frame, span, operands) if sys.version_info < (3, 12) else None
        within = [in_order] if in_order is not None else [one for one in operands if contains(one.span, span)]
    else:
        within = [one for one in operands if one.span[0] <= frame.f_lineno <= one.span[2]]
    if not within:
        return Question(linecache.getline(file, frame.f_lineno), None)
    found = within[-1]
    is_argument = span is not None and any(contains(one, span) for one in found.arguments)
    if is_argument and frame.f_lasti not in _jumps(frame.f_code):
        return found.question._replace(is_check=False)
    return found.question


def read_expression(frame: FrameType) -> str:
    """Return the source of the expression whose truth value a frame reads, without ``not``. Without columns: of its condition."""
    span = span_now(frame)
    if span is None or frame.f_lasti in _jumps(frame.f_code):  # in Python 3.11 a jump has the position of another part
        return own_question(frame).text
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(span[0], span[2] + 1)]
    lines[-1] = lines[-1][: span[3]]
    lines[0] = lines[0][span[1] :]
    return b"".join(lines).decode(errors="replace").removeprefix("not ")


def _in_order(frame: FrameType, span: Span, operands: Sequence[_Operand]) -> _Operand | None:
    """Return the operand by the order of the jumps. None if their number is another one.

    In Python 3.11 a jump has the position of its statement or of an operand before. Each operand has one jump, and a loop has all
    of them twice.
    """
    for statement in dict.fromkeys(one.statement for one in reversed(operands)):
        parts = [one for one in operands if one.statement == statement]
        test = (*parts[0].span[:2], *parts[-1].span[2:])
        if span != statement and not contains(test, span):
            continue
        places = [(at, _span(frame.f_code, at)) for at in _jumps(frame.f_code)]
        jumps = [at for at, place in places if place is not None and (place == statement or contains(test, place))]
        if frame.f_lasti in jumps and len(jumps) % len(parts) == 0:
            return parts[jumps.index(frame.f_lasti) % len(parts)]
    return None


def span_now(frame: FrameType) -> Span | None:
    """Return the expression that a frame evaluates now. None before Python 3.11, which does not report it."""
    return _span(frame.f_code, frame.f_lasti)


def contains(outer: Span, inner: Span) -> bool:
    """Return whether a part of a file contains another one."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


def _span(code: CodeType, offset: int) -> Span | None:
    if sys.version_info < (3, 11):  # has no columns
        return None
    line, last_line, column, last_column = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
    if line is None or last_line is None or column is None or last_column is None:
        return None
    return line, column, last_line, last_column


@functools.lru_cache(maxsize=256)
def _jumps(code: CodeType) -> Sequence[int]:
    return [one.offset for one in dis.get_instructions(code) if "JUMP" in one.opname and "IF" in one.opname]


@functools.lru_cache(maxsize=256)
def _operands(file: str) -> Sequence[_Operand]:
    try:
        source = Path(file).read_bytes()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[_Operand] = []
    lines = source.splitlines()
    scopes = _scopes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            leaves = _leaves(node.body[-1]) or (is_torch(file) and isinstance(node.body[-1], ast.Return))
            is_check = isinstance(node.body[-1], ast.Raise) or (
                not node.orelse and _only_objects(node.body, scopes[node])
            )
            found += _parts(node.test, not leaves, span_of(node), lines, is_check=is_check)
        elif isinstance(node, ast.While | ast.Assert | ast.IfExp):
            found += _parts(node.test, True, span_of(node), lines, is_check=isinstance(node, ast.Assert))
    return found


def span_of(node: ast.stmt | ast.expr) -> Span:
    """Return the place of a node in its file."""
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _leaves(last: ast.stmt) -> bool:
    """Return whether a block that ends with this statement leaves its loop, fails or warns: ``raise``, ``sys.exit()``."""
    if isinstance(last, ast.Continue | ast.Break | ast.Raise):
        return True
    if isinstance(last, ast.Assert):
        return isinstance(last.test, ast.Constant) and not last.test.value
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)):
        return False
    name, first = ast.unparse(last.value.func).rpartition(".")[2], next(iter(last.value.args), None)
    return (
        name == "exit"
        or "warn" in name
        or ("assert" in name and isinstance(first, ast.Constant) and first.value is False)
    )


def _scopes(tree: ast.Module) -> dict[ast.If, ast.AST]:
    """Return the function or module around each ``if``."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    # The innermost function comes last, and replaces those around it.
    return {node: scope for scope in [tree, *functions] for node in ast.walk(scope) if isinstance(node, ast.If)}


def _only_objects(body: Sequence[ast.stmt], scope: ast.AST) -> bool:
    """Return whether a block does nothing but raise or warn. It may compute the words, in variables that only it uses."""
    for one in body:
        if isinstance(one, ast.If):
            if not _only_objects([*one.body, *one.orelse], scope):
                return False
        elif isinstance(one, ast.Assign):
            if not all(_is_only_in(body, target, scope) for target in one.targets):
                return False
        elif not (isinstance(one, ast.Raise) or (isinstance(one, ast.Expr) and _leaves(one))):
            return False
    return not isinstance(body[-1], ast.Assign)


def _is_only_in(body: Sequence[ast.stmt], target: ast.expr, scope: ast.AST) -> bool:
    """Return whether an assignment changes a local variable that is used in this block only."""
    if not isinstance(target, ast.Name) or any(isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(scope)):
        return False
    name = target.id

    def uses(part: ast.AST) -> int:
        return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(part))

    return uses(scope) == sum(uses(one) for one in body)


def _parts(
    node: ast.expr, wanted: bool, statement: Span, lines: Sequence[bytes], *, is_check: bool
) -> Iterator[_Operand]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _parts(node.operand, not wanted, statement, lines, is_check=is_check)
    elif isinstance(node, ast.BoolOp):
        for part in node.values:
            yield from _parts(part, wanted, statement, lines, is_check=is_check)
    elif not isinstance(node, ast.Constant):  # it has no jump, and reads nothing
        first, column, last, last_column = span = span_of(node)
        text = lines[first - 1][column:last_column] if first == last else b" ".join(lines[first - 1 : last])
        arguments = [
            span_of(part)
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") not in CONVERTING
            for part in (*call.args, *(one.value for one in call.keywords))
        ]
        yield _Operand(span, statement, Question(text.decode(errors="replace"), wanted, is_check), arguments)
