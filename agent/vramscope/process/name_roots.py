"""Start points of a search for holders: local variables of every thread's frames, globals of the user's modules, their
classes.

Frames with a debugger's trace function are left unchanged.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dis
import gc
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from vramscope.process import type_info
from vramscope.process.frames import (
    COMPREHENSIONS,
    INLINED,
    LOCALS_ARE_COPIED,
    is_library,
    is_own,
    locals_of,
    running_frames,
)

DEEPEST_ARGUMENT: Final = 3
"""Depth to which containers among a call's arguments are searched for tensors."""


class Root(NamedTuple):
    """One name under which an object can be reached."""

    kind: str
    """One of local, global, class, context variable."""
    name: str
    value: Any
    code: types.CodeType | None
    """Function of a local; the module's code if that is running."""
    file: str | None
    line: int | None
    """Current line of the frame."""
    owner: str
    """Function, module or class that has the name."""
    of_class: type | None = None
    call: tuple[types.CodeType, int] | None = None
    """Function of the user's and line that called the one with this local; None where a library called it."""

    @property
    def spoken(self) -> str:
        """Name as the program writes it: ``Stats.losses``, because many classes have an attribute of one name."""
        return f"{self.owner.rpartition('.')[2]}.{self.name}" if self.kind == "class" else self.name

    def __str__(self) -> str:
        where = {
            "local": f"local '{self.name}' of {self.owner}()",
            "class": f"class {self.owner}.{self.name}",
            "context variable": f"context variable '{self.name}'",
        }
        return where.get(self.kind, f"global '{self.name}'")


def roots() -> list[list[Root]]:
    """Return every root: variables of the user's functions, innermost first; then of libraries; then globals and classes.

    Last are containers that only their own methods call ``self``: any other name says more.
    """
    mine: list[Root] = []
    theirs: list[Root] = []
    for frame in running_frames():
        found = list(_locals_of(frame))
        (theirs if is_library(frame.f_code.co_filename) else mine).extend(found)
    mine = _without_arguments(mine)
    selves = [root for root in mine if _is_self(root)]
    return [
        [root for root in mine if not _is_self(root)],
        theirs,
        [*_globals(), *_context(), *_modes(), *_hooks_of_all()],
        selves,
    ]


def _without_arguments(mine: list[Root]) -> list[Root]:
    """Leave out arguments whose value a function further out has in a variable or in an attribute of one: that one refers to it
    after the call, too.

    mine   variables of functions, innermost first
    """
    found: list[Root] = []
    further_out: set[int] = set()
    slots: dict[type, list[Any]] = {}
    for root in reversed(mine):
        if not (id(root.value) in further_out and root.kind == "local" and _is_argument(root)):
            found.append(root)
        if root.name.isidentifier():  # pytest's assert has variables like @py_assert2
            further_out.add(id(root.value))
            further_out.update(_attributes(root.value, slots))
    return found[::-1]


def _attributes(value: Any, slots: dict[type, list[Any]]) -> Iterator[int]:
    """Yield ids of what an object of the user's class has as attributes, at most MOST_ATTRIBUTES. None of its code runs.

    slots   of the classes that were read before
    """
    kind = type(value)
    if issubclass(kind, CONTAINERS) or type_info.module_of(kind).partition(".")[0] in (
        "builtins",
        "collections",
        "torch",
    ):
        return
    if issubclass(kind, tuple):
        yield from map(id, tuple.__getitem__(value, slice(MOST_ATTRIBUTES)))
    attributes = type_info.attributes_of(value, type_info.dict_of(kind)) or {}
    is_module = "_modules" in attributes and "_parameters" in attributes
    of_module = [attributes.get(name) for name in OF_MODULES] if is_module else []
    for names in (attributes, *of_module):
        if type(names) is dict and len(names) <= MOST_ATTRIBUTES:
            yield from map(id, list(names.values()))
    if kind not in slots:
        slots[kind] = type_info.slots_of(kind)[:MOST_ATTRIBUTES]
    for slot in slots[kind]:
        with contextlib.suppress(AttributeError, TypeError):  # empty
            yield id(slot.__get__(value, kind))


def _is_argument(root: Root) -> bool:
    code, is_object = root.code, root.name in ("self", "cls")  # (the class's own attributes are named after these)
    return (
        code is not None
        and not is_object
        and root.name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    )


def _is_self(root: Root) -> bool:
    return root.name == "self" and issubclass(type(root.value), CONTAINERS)


def in_flight() -> set[int]:
    """Return ids of the tensors in the arguments of this thread's running module calls: ``model(batch.to(device))``.

    Only the call's own variables refer to them, no name of the user's.
    """
    import torch

    found: set[int] = set()
    frame: types.FrameType | None = sys._getframe(1)
    calls = torch.nn.Module._wrapped_call_impl.__code__.co_filename
    while frame is not None:
        if frame.f_code.co_filename == calls:
            values = [value for value in locals_of(frame).values() if type(value) in (tuple, dict)]
            for _ in range(DEEPEST_ARGUMENT):
                inner = gc.get_referents(*values) if values else []
                found.update(id(thing) for thing in inner if issubclass(type(thing), torch.Tensor))
                values = [thing for thing in inner if type(thing) in (tuple, list, dict)]
        frame = frame.f_back
    return found


def building() -> types.FrameType | None:
    """Return the user's frame that is building a container now, by a comprehension or from a generator.

    Until it is complete the container has no name: ``losses = [step(batch) for batch in loader]``.
    """
    for frame in running_frames():
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


_TAKES: Final = ("LIST_APPEND", "SET_ADD", "MAP_ADD")


def _is_in_comprehension(code: types.CodeType, at: int) -> bool:
    """Return whether this position is in a comprehension of the function. From Python 3.12 on most have no frame of their
    own."""
    if INLINED:
        instructions = list(dis.get_instructions(code))
        loops = [(one.offset, one.argval) for one in instructions if one.opname == "FOR_ITER"]
        for taker in instructions:
            if taker.opname in _TAKES and (taker.arg or 0) > 1:  # 1 is a list display such as ``[*these, that]``
                around = [loop for loop in loops if loop[0] < taker.offset < loop[1]]
                start, end = min(around, key=lambda loop: loop[1] - loop[0], default=(0, 0))
                if start <= at < end:
                    return True
    return False


def _locals_of(frame: types.FrameType) -> Iterator[Root]:
    code = frame.f_code
    at_module = frame.f_locals is frame.f_globals if code.co_name == "<module>" else False
    if not at_module and LOCALS_ARE_COPIED and frame.f_trace is not None:
        return  # a debugger's: to touch its dict would change what it shows
    caller = frame.f_back
    by_user = caller is not None and not is_library(caller.f_code.co_filename)
    call = (caller.f_code, caller.f_lineno) if caller is not None and by_user else None
    names = dict(frame.f_globals if at_module else locals_of(frame))
    kind = "global" if at_module else "local"
    for name, value in names.items():
        if issubclass(type(value), type) and not at_module:
            if type_info.module_of(value) == frame.f_globals.get("__name__"):  # a class of the function's own
                yield from _class_attributes(value, code.co_filename)
        elif type(value) not in ATOMS and not (at_module and name.startswith("__")) and not is_namespace(value):
            yield Root(kind, name, value, code, code.co_filename, frame.f_lineno, code.co_name, None, call)


def is_namespace(value: object) -> bool:
    """Return whether the object is the dict of a module's globals. The contents have names of their own (``python -m
    train``)."""
    return type(value) is dict and "__name__" in value and "__builtins__" in value


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
    """Yield values of this thread's context variables."""
    for variable, value in contextvars.copy_context().items():
        if type(value) not in ATOMS:
            yield Root("context variable", variable.name, value, None, None, None, "")


def _modes() -> Iterator[Root]:
    """Yield PyTorch's modes of this thread that the user wrote: ``with Trace():`` refers to one without a name."""
    import torch
    from torch.utils import _python_dispatch

    stacks = (
        (torch.overrides, "_get_current_function_mode_stack"),
        (_python_dispatch, "_get_current_dispatch_mode_stack"),
    )
    for module, name in stacks:
        for mode in getattr(module, name, list)():
            kind = type(mode)
            if type_info.module_of(kind).partition(".")[0] != "torch":
                yield Root("context variable", type_info.name_of(kind), mode, None, None, None, "")


def _hooks_of_all() -> Iterator[Root]:
    """Yield PyTorch's tables of hooks for all modules, and for all optimizers, with what the user has registered."""
    for module in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for name, value in list(vars(sys.modules.get(module, types)).items()):
            if name.startswith("_global_") and name.endswith("hooks") and issubclass(type(value), dict) and value:
                yield Root("global", name, value, None, None, None, module)


def _class_attributes(kind: type, file: str | None) -> Iterator[Root]:
    for name, value in list(type_info.namespace(kind).items()):
        if type(value) not in ATOMS and not name.startswith("__"):
            yield Root("class", name, value, None, file, None, type_info.qualified_name(kind), kind)


def user_modules() -> list[types.ModuleType]:
    """Return modules that the user wrote: not Python's, a package's or the agent's."""
    found = []
    for module in list(sys.modules.values()):
        if not issubclass(type(module), types.ModuleType):
            continue  # reading ``__class__`` of a lazy module can import modules
        file = module.__dict__.get("__file__")
        if module.__dict__.get("__name__") == "__main__" or (
            type(file) is str and not is_library(file) and not is_own(file)
        ):
            found.append(module)
    return found


OF_MODULES: Final = ("_parameters", "_buffers", "_modules")
"""Dicts of a PyTorch module whose entries are read as attributes."""
CONTAINERS: Final = (dict, list, set, collections.deque)
MOST_ATTRIBUTES: Final = 200
"""Attributes of an object up to which they are searched for the value of an argument."""
ATOMS: Final = frozenset(
    (int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice)
)
