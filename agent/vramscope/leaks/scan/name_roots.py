"""Where a search for holders begins: local variables of every thread's frames, globals of the user's modules, their classes.

Reading ``frame.f_locals`` up to Python 3.12 copies the variables into a dict that stays with the frame, and would keep
alive what the function deletes afterwards. So the dict is emptied again, unless somebody else holds it (the user's own
``locals()``), and frames under a debugger's trace function are left alone. Python 3.13 gives a view: nothing to undo.
"""

from __future__ import annotations

import collections
import contextvars
import dis
import functools
import gc
import inspect
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramscope.leaks.holders import type_info

LOCALS_ARE_COPIED: Final = sys.version_info < (3, 13)
INLINED: Final = sys.version_info >= (3, 12)
"""comprehensions are loops of the function that they stand in"""

_OWN = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = tuple(
    path + os.sep
    for path in {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    if path
)

MOST_FRAMES: Final = 400
DEEPEST_ARGUMENT: Final = 3
"""containers within a call's arguments in which tensors are looked for"""


class Root(NamedTuple):
    """One name under which an object can be reached."""

    kind: str
    """local | global | class | context variable"""
    name: str
    value: Any
    code: types.CodeType | None
    """the function of a local, the module's code where it runs"""
    file: str | None
    line: int | None
    """where the frame is now"""
    owner: str
    """the function, module or class that has the name"""
    of_class: type | None = None

    @property
    def spoken(self) -> str:
        """The name as the program writes it: ``Stats.losses``, for many classes have an attribute of one name."""
        return f"{self.owner.rpartition('.')[2]}.{self.name}" if self.kind == "class" else self.name

    def __str__(self) -> str:
        where = {"local": f"local '{self.name}' of {self.owner}()", "class": f"class {self.owner}.{self.name}"}
        return where.get(self.kind, f"global '{self.name}'")


@functools.lru_cache(maxsize=8192)
def is_library(file: str | None) -> bool:
    """Whether a file belongs to Python or to an installed package: the user did not write it."""
    return (
        file is None
        or file.startswith(("<frozen", "<string>", "<eval_with_key>", *_LIBRARIES))
        or f"{os.sep}site-packages{os.sep}" in file
        or any(_is_installed(folder, file) for folder in sys.path if folder)
    )


def _is_installed(folder: str, file: str) -> bool:
    """Whether a file is of a package that was put into a folder of one's own: ``pip install --target``."""
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


def roots() -> list[list[Root]]:
    """Every root: variables of the user's functions, the innermost first; then libraries' frames; then globals and classes.

    Last what only its own methods call ``self`` and is a container by itself: any other name says more.
    """
    mine: list[Root] = []
    theirs: list[Root] = []
    for frame in frames():
        found = list(_locals_of(frame))
        (theirs if is_library(frame.f_code.co_filename) else mine).extend(found)
    selves = [root for root in mine if _is_self(root)]
    return [[root for root in mine if not _is_self(root)], theirs, [*_globals(), *_context()], selves]


def _is_self(root: Root) -> bool:
    return root.name == "self" and issubclass(type(root.value), (dict, list, set, collections.deque))


def frames() -> list[types.FrameType]:
    """Frames of all threads, this thread's first, each from the innermost out; without the agent's and PyTorch's own."""
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
    # This function's own frame is one of them: held by its own variable it would outlive the call, with all that our
    # callers' variables hold, until a garbage collection.
    current.clear()
    frame = None
    return found


def in_flight() -> set[int]:
    """Ids of the tensors that this thread's calls of modules were given: ``model(batch.to(device))`` keeps them for its own time.

    The call's own variables have them, and no name of the user's does.
    """
    import torch

    found: set[int] = set()
    frame: types.FrameType | None = sys._getframe(1)
    calls = torch.nn.Module._wrapped_call_impl.__code__.co_filename
    while frame is not None:
        if frame.f_code.co_filename == calls:
            given = [value for value in locals_of(frame).values() if type(value) in (tuple, dict)]
            for _ in range(DEEPEST_ARGUMENT):
                inner = gc.get_referents(*given) if given else []
                found.update(id(thing) for thing in inner if issubclass(type(thing), torch.Tensor))
                given = [thing for thing in inner if type(thing) in (tuple, list, dict)]
        frame = frame.f_back
    return found


def building() -> types.FrameType | None:
    """The user's frame in which a container is being built right now, by a comprehension or out of a generator.

    Until it is done the container has no name: ``losses = [step(batch) for batch in loader]``.
    """
    for frame in frames():
        code, caller = frame.f_code, frame.f_back
        if not is_library(code.co_filename) and _is_in_comprehension(code, frame.f_lasti):
            return frame
        if caller is None or is_library(caller.f_code.co_filename):
            continue
        if code.co_name in COMPREHENSIONS - {"<genexpr>"}:
            return caller
        # A loop asks a generator for its next; a call that asks is one of list(), dict(), sorted() ...
        asks = dis.opname[caller.f_code.co_code[caller.f_lasti]]
        if code.co_flags & inspect.CO_GENERATOR and asks.startswith("CALL"):
            return caller
    return None


COMPREHENSIONS: Final = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))
_TAKES: Final = ("LIST_APPEND", "SET_ADD", "MAP_ADD")


def _is_in_comprehension(code: types.CodeType, at: int) -> bool:
    """Whether this place of a function is in a comprehension of its: from Python 3.12 on most have no frame of their own."""
    if INLINED:
        instructions = list(dis.get_instructions(code))
        loops = [(one.offset, one.argval) for one in instructions if one.opname == "FOR_ITER"]
        for taker in instructions:
            if taker.opname in _TAKES and (taker.arg or 0) > 1:  # (1: of a display, ``[*these, that]``)
                around = [loop for loop in loops if loop[0] < taker.offset < loop[1]]
                start, end = min(around, key=lambda loop: loop[1] - loop[0], default=(0, 0))
                if start <= at < end:
                    return True
    return False


def is_torch(file: str) -> bool:
    return f"{os.sep}torch{os.sep}" in file and is_library(file)


def _locals_of(frame: types.FrameType) -> Iterator[Root]:
    code = frame.f_code
    at_module = frame.f_locals is frame.f_globals if code.co_name == "<module>" else False
    if not at_module and LOCALS_ARE_COPIED and frame.f_trace is not None:
        return  # a debugger's: to touch its dict would change what it shows
    names = dict(frame.f_globals if at_module else locals_of(frame))
    kind = "global" if at_module else "local"
    for name, value in names.items():
        if issubclass(type(value), type) and not at_module:
            if type_info.module_of(value) == frame.f_globals.get("__name__"):  # a class of the function's own
                yield from _class_attributes(value, code.co_filename)
        elif type(value) not in ATOMS and not (at_module and name.startswith("__")) and not is_namespace(value):
            yield Root(kind, name, value, code, code.co_filename, frame.f_lineno, code.co_name)


def is_namespace(value: object) -> bool:
    """Whether it is the dict of a module's globals: whoever has it (``python -m train`` runs a library's function that does),
    what is in there has names of its own."""
    return type(value) is dict and "__name__" in value and "__builtins__" in value


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """Names and values of a frame's variables, as a dict of our own; the frame is left as it was."""
    values = frame.f_locals
    names = dict(values)
    if LOCALS_ARE_COPIED and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(values) <= _REFERENCES:
        values.clear()
    return names


def user_line() -> tuple[str, int, str] | None:
    """File, line and function of the user's code that is running now."""
    at = user_place()
    return None if at is None else (at[0].co_filename, at[1], at[0].co_name)


def user_place() -> tuple[types.CodeType, int] | None:
    """The user's function that is running now, and the line in it; of a comprehension the function in which it stands."""
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
"""of a frame's dict that nobody else holds: the frame's, our variable's, the call's"""


def _globals() -> Iterator[Root]:
    for module in user_modules():
        file = module.__dict__.get("__file__") or module.__dict__.get("__name__")
        for name, value in list(module.__dict__.items()):
            kind = type(value)
            if kind in ATOMS or kind is types.ModuleType or name.startswith("__") or is_namespace(value):
                continue
            if issubclass(kind, type):
                if type_info.module_of(value) == module.__dict__.get("__name__"):
                    yield from _class_attributes(value, file)
                continue
            yield Root("global", name, value, None, file, None, module.__dict__.get("__name__", "?"))


def _context() -> Iterator[Root]:
    """Values of this thread's context variables."""
    for variable, value in contextvars.copy_context().items():
        if type(value) not in ATOMS:
            yield Root("context variable", variable.name, value, None, None, None, "")


def _class_attributes(kind: type, file: str | None) -> Iterator[Root]:
    for name, value in list(type_info.namespace(kind).items()):
        if type(value) not in ATOMS and not name.startswith("__"):
            yield Root("class", name, value, None, file, None, type_info.qualified_name(kind), kind)


def user_modules() -> list[types.ModuleType]:
    """Modules that the user wrote: neither Python's nor a package's, nor ours."""
    found = []
    for module in list(sys.modules.values()):
        if not issubclass(type(module), types.ModuleType):
            continue  # (by type: a lazy module's ``__class__`` can import things)
        file = module.__dict__.get("__file__")
        if module.__dict__.get("__name__") == "__main__" or (
            type(file) is str and not is_library(file) and not is_own(file)
        ):
            found.append(module)
    return found


ATOMS: Final = frozenset(
    (int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice)
)
