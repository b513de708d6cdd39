"""Frames of the process: the user's code, and the variables and the line of a running function.

Reading ``frame.f_locals`` up to Python 3.12 copies the variables into a dict that stays with the frame, and would retain
what the function deletes afterwards. So the dict is cleared again, unless it has another reference (the user's own
``locals()``). Python 3.13 returns a view, which needs no clearing.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
import threading
import types
from pathlib import Path
from typing import Any, Final

LOCALS_ARE_COPIED: Final = sys.version_info < (3, 13)
INLINED: Final = sys.version_info >= (3, 12)
"""True if comprehensions are compiled into their function."""
_OWN = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = tuple(
    path + os.sep
    for path in {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    if path
)

MOST_FRAMES: Final = 400
COMPREHENSIONS: Final = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))


@functools.lru_cache(maxsize=8192)
def is_library(file: str | None) -> bool:
    """Return whether a file belongs to Python or to an installed package, not to the user."""
    return (
        file is None
        or file.startswith(("<frozen", "<string>", "<eval_with_key>", *_LIBRARIES))
        or f"{os.sep}site-packages{os.sep}" in file
        or any(_is_installed(folder, file) for folder in sys.path if folder)
    )


def _is_installed(folder: str, file: str) -> bool:
    """Return whether a file belongs to a package in a folder of the user's own: ``pip install --target``."""
    if not file.startswith(folder + os.sep):
        return False
    package = file[len(folder) + 1 :].partition(os.sep)[0].removesuffix(".py").lower()
    return package in _packages_in(folder)


@functools.lru_cache(maxsize=256)
def _packages_in(folder: str) -> frozenset[str]:
    try:
        names = [path.name for path in Path(folder).iterdir()]
    except OSError:
        return frozenset()
    return frozenset(name.partition("-")[0].lower() for name in names if name.endswith(".dist-info"))


def is_own(file: str | None) -> bool:
    return file is not None and file.startswith(_OWN)


def is_torch(file: str) -> bool:
    return f"{os.sep}torch{os.sep}" in file and is_library(file)


def is_running(frame: types.FrameType) -> bool:
    """Return whether a call has not returned yet: the frame is on the stack of a thread. About 0.02 µs a frame there."""
    current = sys._current_frames()
    at: types.FrameType | None
    for ident in current:
        at = current[ident]
        while at is not None and at is not frame:
            at = at.f_back
        if at is not None:
            break
    else:
        at = None
    # This call's own frame is among them, as in running_frames.
    current.clear()
    return at is not None


def running_frames() -> list[types.FrameType]:
    """Return frames of all threads, this thread's first, each from the innermost out, without the agent's and PyTorch's
    own."""
    found: list[types.FrameType] = []
    current = sys._current_frames()
    here = threading.get_ident()
    frame: types.FrameType | None
    for ident in sorted(current, key=lambda ident: ident != here):
        frame = current[ident]
        while frame is not None and len(found) < MOST_FRAMES:
            file = frame.f_code.co_filename
            if not is_own(file) and not is_torch(file):
                found.append(frame)
            frame = frame.f_back
    # This function's own frame is one of them. In its own variable it would outlive the call, with all that the callers'
    # variables retain, until a garbage collection.
    current.clear()
    frame = None
    return found


def running_offset(code: types.CodeType) -> int | None:
    """Bytecode offset at which a function runs on this thread, in its innermost call. None if it does not run."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_lasti


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """Return names and values of a frame's variables in a new dict; the frame does not change."""
    values = frame.f_locals
    names = dict(values)
    if LOCALS_ARE_COPIED and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(values) <= _REFERENCES:
        values.clear()
    return names


def user_line() -> tuple[str, int, str] | None:
    """Return file, line and function of the user's code that is running now."""
    at = user_place()
    return None if at is None else (at[0].co_filename, at[1], at[0].co_name)


def user_place() -> tuple[types.CodeType, int] | None:
    """Return the user's function that is running now, and its line; for a comprehension the function around it."""
    frame = sys._getframe(1)
    place: tuple[types.CodeType, int] | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_own(file) and not is_library(file):
            place = frame.f_code, frame.f_lineno
            if frame.f_code.co_name not in COMPREHENSIONS:
                break
        frame = frame.f_back  # type: ignore[assignment]
    return place


def _count_references() -> int:
    values = sys._getframe().f_locals
    return sys.getrefcount(values)


_REFERENCES: Final = _count_references()
"""Number of references to a frame's dict without another owner: the frame's, the variable's, the call's."""
