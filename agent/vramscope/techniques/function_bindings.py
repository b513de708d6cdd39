"""What checkpointed functions call in forward, against what they call when backward runs them again.

A function that takes a block, its number or a tensor from the code around it finds there what the variable is *then*. Which
modules are called tells that for every way of writing it; which variable it is, the functions' own cells and globals.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections import Counter
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import torch

MOST_FRAMES: Final = 60
"""from a module's call out to the function that is checkpointed"""
MOST_NOTES: Final = 1000
PLAIN: Final = (int, str, bool, float, type(None))
"""kinds that are compared by value"""


class Rebound(NamedTuple):
    """A checkpointed function that found something else around it when backward came."""

    variable: str
    """"" where it is none of the function's own, but an attribute, say"""
    what: str
    """``module``: another one was called; ``tensor``: another one was there, which may matter or not"""
    file: str
    line: int
    regions: int


class _Note(NamedTuple):
    function: weakref.ref[FunctionType]
    found: dict[str, Any]


class Bindings:
    """Of one observed step. Modules are known by their id, functions by their code."""

    def __init__(self) -> None:
        self._forward: dict[CodeType, Counter[int]] = {}
        self._again: dict[CodeType, Counter[int]] = {}
        self._notes: list[_Note] = []
        self._moved: Counter[tuple[CodeType, str, str]] = Counter()
        self._compared = 0

    def called(self, function: Any, module: torch.nn.Module) -> None:
        """In forward, a checkpoint around ``function`` is the innermost around this module's call."""
        while isinstance(function, functools.partial):
            function = function.func
        if not isinstance(function, FunctionType):
            return  # a module, or the method of one: it is bound to what it calls
        self._forward.setdefault(function.__code__, Counter())[id(module)] += 1
        if len(self._notes) < MOST_NOTES and all(note.function() is not function for note in self._notes):
            self._notes.append(_Note(weakref.ref(function), _surroundings(function)))

    def called_again(self, module: torch.nn.Module) -> None:
        """A module is called within backward. Nothing where no function was noted; else some 2 µs."""
        if not self._forward:
            return
        if self._compared < len(self._notes):
            self._compare()
        frame: FrameType | None = sys._getframe(2)
        for _ in range(MOST_FRAMES):
            if frame is None:
                return
            if frame.f_code in self._forward:
                self._again.setdefault(frame.f_code, Counter())[id(module)] += 1
                return
            frame = frame.f_back

    @property
    def rebound(self) -> Rebound | None:
        """The worst of what was found in this step."""
        for code, again in self._again.items():
            times = _times_too_often(self._forward[code], again)
            if times:
                variable = max(
                    ((what == "module", count, name) for (at, what, name), count in self._moved.items() if at is code),
                    default=(False, 0, ""),
                )[2]
                return Rebound(variable, "module", code.co_filename, code.co_firstlineno, times)
        tensors = [(count, code, name) for (code, what, name), count in self._moved.items() if what == "tensor"]
        if not tensors:
            return None
        count, code, name = max(tensors, key=lambda row: row[0])
        return Rebound(name, "tensor", code.co_filename, code.co_firstlineno, count)

    def _compare(self) -> None:
        """What the functions' variables are now, against what they were in forward."""
        from torch import Tensor, nn

        for note in self._notes[self._compared :]:
            function = note.function()
            if function is None:
                continue
            own = _stored_by(function.__code__)
            for name, (kind, then) in note.found.items():
                now = _surroundings(function).get(name)
                if name not in own and now is not None and now[1] != then:
                    what = (
                        "module" if issubclass(kind, nn.Module) else "tensor" if issubclass(kind, Tensor) else "other"
                    )
                    self._moved[(function.__code__, what, name)] += 1
        self._compared = len(self._notes)


def _times_too_often(forward: Counter[int], again: Counter[int]) -> int:
    """How many calls of backward went to another module than forward's; 0 where each came back as often as the others.

    A graph that is walked twice runs all of it twice, and PyTorch stops early: a module may come back less often, or not at all.
    """
    walks = -(-again.total() // forward.total())
    excess = max((count - walks * forward[module] for module, count in again.items()), default=0)
    return excess if excess > 0 and any(module not in again for module in forward) else 0


def _surroundings(function: FunctionType) -> dict[str, tuple[type, Any]]:
    """Name -> (type, identity or value) of what a function takes from the function around it, or from its module."""
    from torch import Tensor, nn

    code = function.__code__
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # deleted meanwhile
    for name in code.co_names:
        if name in function.__globals__:
            found.setdefault(name, function.__globals__[name])
    return {
        name: (type(value), value if type(value) in PLAIN else id(value))
        for name, value in found.items()
        if type(value) in PLAIN or issubclass(type(value), (nn.Module, Tensor))
    }


def _stored_by(code: CodeType) -> set[str]:
    """Variables around a function that it sets itself: it leaves something there, and takes nothing."""
    return {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_DEREF", "STORE_GLOBAL")}
