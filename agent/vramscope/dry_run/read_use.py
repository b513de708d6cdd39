"""Determines whether a program's course depends on a number that it reads, also after it was passed on or returned."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from vramscope.dry_run.branches import span_now
from vramscope.dry_run.uses import decides, destination, destination_of_argument, is_length
from vramscope.dry_run.value_flow import Argument, path_of
from vramscope.process.frames import COMPREHENSIONS, is_library, is_own, is_torch

MOST_CALLS: Final = 6
"""Number of calls through which a value is followed."""


class _Code(NamedTuple):
    """A function that passes a value on, and what its names mean."""

    file: str
    qualified_name: str
    names: Mapping[str, Any]


def is_used(frame: FrameType) -> bool:
    """Return whether a condition, a comparison, an index or a conversion to an integer uses the value that a frame reads.

    The value is followed into functions of the program that get it, and to callers of those that return it. Before Python 3.11,
    which does not report the expression, the frame's own function counts alone. So it does in installed packages.
    """
    reading = span_now(frame)
    if decides(frame.f_code.co_filename, frame.f_lineno, reading):
        return True
    if reading is None or is_library(frame.f_code.co_filename):
        return False
    if _passes_to_deciding(frame):
        return True
    return any(
        decides(one.f_code.co_filename, one.f_lineno, span_now(one)) or _passes_to_deciding(one)
        for one in _receivers(frame, is_number=False)
    )


def is_read_length(frame: FrameType) -> bool:
    """Return whether a frame, or the caller to which it returns the number, uses what it reads as a length."""
    reading = span_now(frame)
    if is_length(frame.f_code.co_filename, frame.f_lineno, reading):
        return True
    if reading is None or is_library(frame.f_code.co_filename):
        return False
    return any(
        is_length(one.f_code.co_filename, one.f_lineno, span_now(one)) for one in _receivers(frame, is_number=True)
    )


def _receivers(frame: FrameType, *, is_number: bool) -> Iterator[FrameType]:
    """Yield the callers of the program to which a value is returned. PyTorch's decorators may be in between."""
    above: FrameType | None = frame
    for _ in range(MOST_CALLS):
        if above is None or (reading := span_now(above)) is None:
            return
        if not is_own(above.f_code.co_filename):
            goes = destination(above.f_code.co_filename, above.f_lineno, reading)
            if not (goes.is_returned_number if is_number else goes.is_returned):
                return
        above = _caller(above)
        if above is not None and not is_library(above.f_code.co_filename):
            yield above
        elif above is not None and not (is_torch(above.f_code.co_filename) or is_own(above.f_code.co_filename)):
            return


def _caller(frame: FrameType) -> FrameType | None:
    above: FrameType | None = frame
    while above is not None and above.f_code.co_name in COMPREHENSIONS:
        above = above.f_back
    return None if above is None else above.f_back


def _passes_to_deciding(frame: FrameType) -> bool:
    reading = span_now(frame)
    if reading is None:
        return False
    file = frame.f_code.co_filename
    code = _Code(file, getattr(frame.f_code, "co_qualname", ""), frame.f_globals)
    return any(_decides(code, one, 1) for one in destination(file, frame.f_lineno, reading).arguments)


def _decides(code: _Code, argument: Argument, depth: int) -> bool:
    """Return whether a function that gets an argument decides by it."""
    if depth > MOST_CALLS:
        return False
    for function, is_bound in _functions(code, argument.callee):
        place = argument.place + is_bound if isinstance(argument.place, int) else argument.place
        file = function.__code__.co_filename
        if is_library(file):
            continue
        is_deciding, passed = destination_of_argument(file, function.__code__.co_firstlineno, place)
        inner = _Code(file, function.__qualname__, function.__globals__)
        if is_deciding or any(_decides(inner, one, depth + 1) for one in passed):
            return True
    return False


def _functions(code: _Code, callee: ast.expr) -> Iterator[tuple[FunctionType, bool]]:
    """Yield the functions that an expression may call, and whether the object is their first argument.

    Local variables are not read: reading them would keep their tensors. Of an unknown object, methods of this name count that
    classes in the file have.
    """
    owner, _, name = (path_of(callee) or "").rpartition(".")
    value = code.names.get(owner or name)
    if isinstance(value, FunctionType) or (owner and isinstance(value, ModuleType)):
        found = value if isinstance(value, FunctionType) else vars(value).get(name)
        if isinstance(found, FunctionType):
            yield _unwrapped(found), False
        return
    method = name if owner else "__init__" if isinstance(value, type) else "__call__"
    kind = value if isinstance(value, type) else _class_of(code, owner or name) if value is None else type(value)
    kinds = [kind] if kind is not None else [] if hasattr(builtins, name) else _classes_in(code)
    found_by_kind = [_method(one, method) for one in kinds]
    if owner and not any(found_by_kind):  # an object that is called: self.stopper(loss)
        kind, method = _class_of(code, f"{owner}.{name}"), "__call__"
        found_by_kind = [_method(kind, method)]
    yield from ((one, True) for one in found_by_kind if one is not None)


def _classes_in(code: _Code) -> list[type]:
    return [
        one
        for one in list(code.names.values())
        if isinstance(one, type) and one.__module__ == code.names.get("__name__")
    ]


def _method(kind: type | None, name: str) -> FunctionType | None:
    found = None if kind is None else inspect.getattr_static(kind, name, None)
    return _unwrapped(found) if isinstance(found, FunctionType) else None


def _unwrapped(function: FunctionType) -> FunctionType:
    """Return the function that decorators wrap; itself if they wrap something else."""
    with contextlib.suppress(ValueError):  # each wraps the other
        wrapped = inspect.unwrap(function)
        if isinstance(wrapped, FunctionType):
            return wrapped
    return function


def _class_of(code: _Code, path: str) -> type | None:
    """Return the class of ``self``, or of a variable to which the file assigns a new object."""
    if path == "self":
        found = code.names.get(code.qualified_name.split(".")[0])
    else:
        found = code.names.get(_made_in(code.file).get(path, ""))
    return found if isinstance(found, type) else None


@functools.lru_cache(maxsize=256)
def _made_in(file: str) -> Mapping[str, str]:
    """Return the variables of a file to which it assigns a new object, with the name of its class."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        path: kind
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if (kind := path_of(node.value.func)) is not None
        for target in node.targets
        if (path := path_of(target)) is not None
    }
