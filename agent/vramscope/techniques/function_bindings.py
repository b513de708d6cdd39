"""Compares the module calls of checkpointed functions in forward and in backward.

A function that reads a block, its index or a tensor from the enclosing code reads the variable's value *at that time*. The
called modules show the difference, however the code is written. Cells and globals of the function show which variable.
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

MAX_FRAMES: Final = 60
"""Maximum number of frames between a module's call and the checkpointed function."""
MAX_SNAPSHOTS: Final = 1000
PLAIN: Final = (int, str, bool, float, type(None))
"""Types that are compared by value."""


class RebindingProblem(NamedTuple):
    """A checkpointed function whose variables had changed when backward ran it again."""

    variable: str
    """"" if it is not a variable of the function, but an attribute, for example."""
    kind: str
    """``module``: another module was called; ``tensor``: the variable was another tensor, which may matter or not"""
    file: str
    line: int
    checkpoints: int
    """Number of affected checkpoints in the step."""


class _Snapshot(NamedTuple):
    """Variables of a function at the time of its forward."""

    function: weakref.ref[FunctionType]
    variables: dict[str, tuple[type, Any]]


class FunctionBindings:
    """Checkpointed functions of one observed step. Modules are identified by id(), functions by their code."""

    def __init__(self) -> None:
        self._forward: dict[CodeType, Counter[int]] = {}
        self._backward: dict[CodeType, Counter[int]] = {}
        self._snapshots: list[_Snapshot] = []
        self._changed: Counter[tuple[CodeType, str, str]] = Counter()
        self._compared = 0

    def called(self, function: Any, module: torch.nn.Module) -> None:
        """Record a module call in forward. The checkpoint of ``function`` is the innermost one around it."""
        while isinstance(function, functools.partial):
            function = function.func
        if not isinstance(function, FunctionType):
            return  # a module or its method, which is bound to what it calls
        self._forward.setdefault(function.__code__, Counter())[id(module)] += 1
        if len(self._snapshots) < MAX_SNAPSHOTS and all(one.function() is not function for one in self._snapshots):
            self._snapshots.append(_Snapshot(weakref.ref(function), _variables(function)))

    def called_again(self, module: torch.nn.Module) -> None:
        """Record a module call within backward. About 2 µs, or nothing if there is no checkpointed function."""
        if not self._forward:
            return
        if self._compared < len(self._snapshots):
            self._compare()
        frame: FrameType | None = sys._getframe(2)
        for _ in range(MAX_FRAMES):
            if frame is None:
                return
            if frame.f_code in self._forward:
                self._backward.setdefault(frame.f_code, Counter())[id(module)] += 1
                return
            frame = frame.f_back

    @property
    def problem(self) -> RebindingProblem | None:
        """The worst problem of this step; None if there is none."""
        for code, backward in self._backward.items():
            calls = _calls_of_wrong_modules(self._forward[code], backward)
            if calls:
                variable = max(
                    (
                        (kind == "module", count, name)
                        for (at, kind, name), count in self._changed.items()
                        if at is code
                    ),
                    default=(False, 0, ""),
                )[2]
                return RebindingProblem(variable, "module", code.co_filename, code.co_firstlineno, calls)
        tensors = [(count, code, name) for (code, kind, name), count in self._changed.items() if kind == "tensor"]
        if not tensors:
            return None
        count, code, name = max(tensors, key=lambda row: row[0])
        return RebindingProblem(name, "tensor", code.co_filename, code.co_firstlineno, count)

    def _compare(self) -> None:
        """Compare the functions' variables with their values in forward."""
        from torch import Tensor, nn

        for snapshot in self._snapshots[self._compared :]:
            function = snapshot.function()
            if function is None:
                continue
            own = _stored_by(function.__code__)
            for name, (type_, then) in snapshot.variables.items():
                now = _variables(function).get(name)
                if name not in own and now is not None and now[1] != then:
                    is_module, is_tensor = issubclass(type_, nn.Module), issubclass(type_, Tensor)
                    kind = "module" if is_module else "tensor" if is_tensor else "other"
                    self._changed[(function.__code__, kind, name)] += 1
        self._compared = len(self._snapshots)


def _calls_of_wrong_modules(forward: Counter[int], backward: Counter[int]) -> int:
    """Number of calls in backward that went to another module than in forward.

    A second backward over the same graph runs everything twice. PyTorch stops recomputation early, so a module may be
    called less often, or not at all.
    """
    walks = -(-backward.total() // forward.total())
    excess = max((count - walks * forward[module] for module, count in backward.items()), default=0)
    return excess if excess > 0 and any(module not in backward for module in forward) else 0


def _variables(function: FunctionType) -> dict[str, tuple[type, Any]]:
    """Name -> (type, identity or value) of the variables that a function reads from its enclosing function or module."""
    from torch import Tensor, nn

    code = function.__code__
    found: dict[str, object] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # deleted
    for name in code.co_names:
        if name in function.__globals__:
            found.setdefault(name, function.__globals__[name])
    return {
        name: (type(value), value if type(value) in PLAIN else id(value))
        for name, value in found.items()
        if type(value) in PLAIN or issubclass(type(value), (nn.Module, Tensor))
    }


def _stored_by(code: CodeType) -> set[str]:
    """Enclosing variables that a function assigns itself: outputs, not inputs."""
    return {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_DEREF", "STORE_GLOBAL")}
