"""Finds optimizers that a program will make after the steps of a dry run, such as the one of a second phase of the training."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, TypeGuard

from vramscope.dry_run.value_flow import path_of, within
from vramscope.process.frames import is_library

MOST_CALLS: Final = 3
"""Depth of calls in which an optimizer is searched."""
Loop = ast.For | ast.AsyncFor | ast.While


def place_now() -> tuple[str, int] | None:
    """Return the line of the program that runs now."""
    frame = next(_frames(), None)
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def later_optimizers(made_at: set[tuple[str, int]]) -> list[str]:
    """Return the optimizers behind the lines that run now, with their lines: ``LBFGS of train.py:30``.

    In a loop around the current line, those before it count too. A line that made one, or a branch beside it, does not count.

    made_at   lines that made an optimizer
    """
    running = {frame.f_code for frame in _frames()}
    found = [
        place
        for frame in _frames()
        for call in _later_calls(frame, made_at)
        for place in _made_by(call, frame.f_code.co_filename, frame.f_globals, running, 0)
    ]
    return [
        f"{kind} of {Path(file).name}:{line}"
        for file, line, kind in dict.fromkeys(found)
        if (file, line) not in made_at
    ]


def stepping_later() -> set[tuple[str, int]]:
    """Return the lines of the running functions that make an optimizer whose ``step()`` is behind the current line."""
    found = set()
    for frame in _frames():
        stepping = {path_of(call.func) for call in _later_calls(frame, set())}
        scope = _scope_of(frame)
        for node in within(scope) if scope is not None else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                names = [path for target in node.targets if (path := path_of(target)) is not None]
                kind = _object(node.value.func, frame.f_globals)
                if _is_optimizer(kind) and any(f"{name}.step" in stepping for name in names):
                    found.add((frame.f_code.co_filename, node.value.lineno))
    return found


def _frames() -> Iterator[FrameType]:
    """Yield the running functions of the program, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not is_library(frame.f_code.co_filename) and not frame.f_globals.get("__name__", "").startswith("vramscope"):
            yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=64)
def _scopes(file: str) -> Mapping[int, ast.AST]:
    """Return the functions of a file by their first line, and the file itself by 0."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {0: tree} | {min([one.lineno, *(part.lineno for part in one.decorator_list)]): one for one in functions}


def _scope_of(frame: FrameType) -> ast.AST | None:
    code = frame.f_code
    return _scopes(code.co_filename).get(0 if code.co_name == "<module>" else code.co_firstlineno)


def _later_calls(frame: FrameType, made_at: set[tuple[str, int]]) -> list[ast.Call]:
    code, line, scope = frame.f_code, frame.f_lineno, _scope_of(frame)
    if scope is None:
        return []
    nodes = list(within(scope))
    loops = [one for one in nodes if isinstance(one, Loop) and one.lineno <= line <= (one.end_lineno or line)]
    repeated = {node for loop in loops for node in ast.walk(loop)}
    lines = [made for file, made in made_at if file == code.co_filename]
    branches = [(one, other) for node in nodes if isinstance(node, ast.If) for one, other in _branches(node)]
    others = [other for one, other in branches if any(_has_line(one, made) for made in lines)]
    return [
        call
        for call in nodes
        if isinstance(call, ast.Call)
        and (call.lineno > line or call in repeated)
        and not call.lineno <= line <= (call.end_lineno or line)
        and not any(_has_line(other, call.lineno) for other in others)
    ]


def _branches(node: ast.If) -> tuple[tuple[list[ast.stmt], list[ast.stmt]], ...]:
    """Return each branch with the one that does not run if it does."""
    return (node.body, node.orelse), (node.orelse, node.body)


def _has_line(statements: list[ast.stmt], line: int) -> bool:
    return any(one.lineno <= line <= (one.end_lineno or one.lineno) for one in statements)


def _made_by(
    call: ast.Call, file: str, names: Mapping[str, Any], running: set[Any], depth: int
) -> Iterator[tuple[str, int, str]]:
    """Yield the optimizers that a call makes: file, line and class."""
    called = _object(call.func, names)
    if _is_optimizer(called):
        yield file, call.lineno, called.__name__
    elif isinstance(called, FunctionType) and depth < MOST_CALLS:
        code = called.__code__
        if code not in running and not is_library(code.co_filename):
            scope = _scopes(code.co_filename).get(code.co_firstlineno)
            inner = [one for one in within(scope) if isinstance(one, ast.Call)] if scope is not None else []
            for one in inner:
                yield from _made_by(one, code.co_filename, called.__globals__, running | {code}, depth + 1)


def _is_optimizer(kind: Any) -> TypeGuard[type]:
    from torch.optim import Optimizer

    return isinstance(kind, type) and issubclass(kind, Optimizer)


def _object(callee: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what a path of modules names: ``torch.optim.Adam``. None for other expressions."""
    first, *others = (path_of(callee) or "").split(".")
    found = names.get(first)
    for name in others:
        found = vars(found).get(name) if isinstance(found, ModuleType) else None
    return found
