"""Modules that ran inside a checkpoint, and those that ran again in backward.

PyTorch's own checkpoint is recognized by its frames and saved-tensor hooks. A module that ran without gradients, and again
with gradients within backward, was checkpointed too, by another function (DeepSpeed's, Unsloth's). A function that calls no
module is recognized by the hooks around it, or found in the graph.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.process.frames import is_library, is_own, locals_of
from vramscope.techniques.function_bindings import MAX_FRAMES, FunctionBindings

if TYPE_CHECKING:
    import torch

NON_REENTRANT, REENTRANT, OTHER = "non-reentrant", "reentrant", "other"
SELECTIVE: Final = f"{NON_REENTRANT}, selective"
"""A policy decides for each operation whether its result is saved."""
NEAR_FRAMES: Final = 12
"""Maximum number of frames between the checkpoint's hooks and the checkpoint, the agent's frames included."""


class CheckpointedFunction(NamedTuple):
    """Name and identity of a checkpointed function. It retains nothing of the function."""

    name: str
    code: int


class CheckpointRegions:
    """Checkpoints of one observed step. Modules are identified by id(), within the step and right after it."""

    def __init__(self) -> None:
        import torch.utils.checkpoint as library
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        self._dispatch_mode: Callable[[], object] = _get_current_dispatch_mode
        # From PyTorch 2.15 on, ``checkpoint`` passes its arguments on to a function that sets the default of use_reentrant.
        runs = getattr(library, "_checkpoint_impl", library.checkpoint)
        self._checkpoint: CodeType = inspect.unwrap(runs).__code__
        self.inside: set[int] = set()
        self.without_gradients: set[int] = set()
        self.again: Counter[int] = Counter()
        self._variants: dict[int, str] = {}
        self.unset_at: tuple[str, int] | None = None
        """Line that called ``checkpoint`` without use_reentrant."""
        self.bindings = FunctionBindings()
        self._owners: dict[int, int] = {}
        self._functions: dict[int, CheckpointedFunction] = {}
        """Identity of PyTorch's record of a checkpoint -> its function."""
        self._recomputed: dict[CheckpointedFunction, str] = {}
        """Function -> variant."""
        self._with_modules: set[CheckpointedFunction] = set()
        """Functions that call modules."""

    def recomputed(self, models: Iterable[torch.nn.Module], called: set[int]) -> set[int]:
        """Modules that ran in a checkpoint, or without gradients, and again in backward.

        The checkpointed module itself if it is known, else each module in it. (A block whose ``forward`` is called directly
        is not observed itself.)

        called   all modules called in the step; a module whose parts also ran outside was checkpointed in part, by a method
        """
        outside = called - self._owners.keys()
        owners = set(self._owners.values())
        parts = {
            id(module)
            for module in models
            if id(module) in owners and any(id(own) in outside for own in module.modules() if own is not module)
        }
        repeated = set(self.again) & (self.inside | self.without_gradients)
        owned = {module: self._owners.get(module, module) for module in repeated}
        return {module if owner in parts else owner for module, owner in owned.items()}

    @property
    def functions(self) -> dict[str, str]:
        """Name -> variant of the recomputed functions that called no module."""
        return {one.name: variant for one, variant in self._recomputed.items() if one not in self._with_modules}

    def entered(self, pack: Any) -> None:
        """Handle the start of a non-reentrant checkpoint, whose saved-tensor hooks are entered. About 2 µs."""
        record = _record_id(pack)
        frame: FrameType | None = sys._getframe(1)
        for _ in range(NEAR_FRAMES):
            if frame is None or not record:
                return
            if frame.f_code is self._checkpoint:
                function = _function_of(locals_of(frame).get("function"))
                if function is not None:
                    self._functions[record] = function
                return
            frame = frame.f_back

    def entered_again(self, pack: Any) -> None:
        """Handle the recomputation of a non-reentrant checkpoint within backward, which enters other hooks."""
        function = self._functions.get(_record_id(pack))
        if function is not None:
            self._recomputed[function] = NON_REENTRANT

    def found_in_graph(self, functions: Iterable[Any]) -> None:
        """Handle functions that reentrant checkpoints left in the graph. Backward runs them again."""
        for function in map(_function_of, functions):
            if function is not None:
                self._recomputed[function] = REENTRANT

    def called_in_checkpoint(self, module: torch.nn.Module) -> None:
        """Record a module call inside a non-reentrant checkpoint."""
        self.inside.add(id(module))
        by_policy = type(self._dispatch_mode()).__name__ == "_CachingTorchDispatchMode"
        self._variants[id(module)] = SELECTIVE if by_policy else NON_REENTRANT
        self._read_frames(module)

    def called_without_gradients(self, module: torch.nn.Module) -> bool:
        """Record a module call without gradients. Returns True if a reentrant checkpoint is around it."""
        if self._read_frames(module) == REENTRANT:
            self.inside.add(id(module))
            self._variants[id(module)] = REENTRANT
            return True
        self.without_gradients.add(id(module))  # within the other variant too, if the user has disabled gradients
        return False

    def called_again(self, module: torch.nn.Module, with_gradients: bool) -> None:
        """Record a module call within backward."""
        self.bindings.called_again(module)
        if id(module) in self._owners:
            self.again[id(module)] += 1
        elif with_gradients:  # otherwise a hook called it without gradients, and nothing is recomputed
            self.again[id(module)] += 1
            if id(module) in self.without_gradients:
                self._variants.setdefault(id(module), OTHER)

    def not_recomputed(self, modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
        """Modules of these that ran in a reentrant checkpoint, and not again in backward: it never reached the checkpoint."""
        again = {self._owners.get(module, module) for module in self.again}
        return [
            module
            for module in modules
            if self._variants.get(id(module)) == REENTRANT
            and id(module) not in self.again
            and self._owners.get(id(module), id(module)) not in again
        ]

    def variants_of(self, modules: set[int]) -> set[str]:
        """Checkpoint variants of these modules."""
        return {
            variant
            for module, variant in self._variants.items()
            if module in modules or self._owners.get(module) in modules
        }

    def _read_frames(self, module: torch.nn.Module) -> str:
        """Variant of the innermost ``checkpoint`` in the outer frames; "" if there is none. About 2 µs."""
        frame: FrameType | None = sys._getframe(3)
        for _ in range(MAX_FRAMES):
            if frame is None:
                return ""
            if frame.f_code is self._checkpoint:
                arguments = locals_of(frame)
                function = arguments.get("function")
                self.bindings.called(function, module)
                self._owners[id(module)] = id(_owner(function) or module)
                checkpointed = _function_of(function)
                if checkpointed is not None:
                    self._with_modules.add(checkpointed)
                if self.unset_at is None:
                    self._check_use_reentrant(frame)
                return REENTRANT if arguments.get("use_reentrant", True) else NON_REENTRANT
            frame = frame.f_back
        return ""

    def _check_use_reentrant(self, frame: FrameType) -> None:
        """Read the original arguments from the decorator around ``checkpoint``; the user's line is further out."""
        outer: FrameType | None = frame.f_back
        left_out = False
        while outer is not None and is_library(outer.f_code.co_filename):
            if outer.f_code.co_name == "inner" and "_compile" in outer.f_code.co_filename:
                left_out = locals_of(outer).get("kwargs", {"use_reentrant": False}).get("use_reentrant") is None
            elif outer.f_code.co_name == "checkpoint_sequential" and outer.f_back is not None:
                # Without the argument it passes on True and warns. Only the user's line shows the argument.
                left_out = not _call_has_keyword(outer.f_back, "use_reentrant")
            outer = outer.f_back
        if left_out and outer is not None and not is_own(outer.f_code.co_filename):
            self.unset_at = (outer.f_code.co_filename, outer.f_lineno)


def _call_has_keyword(frame: FrameType, keyword: str) -> bool:
    """Whether the running call of a frame has this keyword, or a ``**mapping`` that may have it. Reads the bytecode.

    The names precede the call: KW_NAMES in Python 3.11 and 3.12, a constant in other versions. About 0.2 µs per instruction.
    """
    names: Any = ()
    constant: Any = ()
    calls = ""
    for one in dis.get_instructions(frame.f_code):
        if one.offset > frame.f_lasti:
            break
        if calls:
            names = ()  # names of an earlier call
        calls = one.opname if one.opname.startswith("CALL") else ""
        if one.opname == "KW_NAMES":
            names = frame.f_code.co_consts[one.arg or 0]
        elif one.opname == "LOAD_CONST" and type(one.argval) is tuple:
            constant = one.argval
        elif one.opname in ("CALL_FUNCTION_KW", "CALL_KW"):
            names = constant
    return not calls or calls == "CALL_FUNCTION_EX" or keyword in names


def _owner(function: Any) -> torch.nn.Module | None:
    """Module of a checkpointed function: the module itself, the owner of a method, or the first argument of a partial."""
    if isinstance(function, functools.partial):
        first = function.args[0] if function.args else function.keywords.get("self")
        return first if _is_module(type(first)) else _owner(function.func)
    if isinstance(function, MethodType):
        function = function.__self__
    return function if _is_module(type(function)) else None


def _function_of(function: Any) -> CheckpointedFunction | None:
    """Name and identity of a function; None for a module, whose call is observed."""
    while isinstance(function, functools.partial):
        function = function.func
    prefix = ""
    if isinstance(function, MethodType):
        owner = function.__self__
        prefix = f"{(owner if isinstance(owner, type) else type(owner)).__name__}."
        function = function.__func__
    if isinstance(function, FunctionType):
        return CheckpointedFunction(prefix + function.__name__, id(function.__code__))
    kind = type(function)
    return None if _is_module(kind) else CheckpointedFunction(kind.__name__, id(kind))


def _is_module(kind: type) -> bool:
    from torch import nn

    return issubclass(kind, nn.Module)


def _record_id(pack: Any) -> int:
    """Identity of PyTorch's record of a checkpoint, from the closure of its pack hook; 0 if there is none."""
    for cell in getattr(inspect.unwrap(pack), "__closure__", None) or ():
        value = cell.cell_contents
        value = value() if isinstance(value, weakref.ref) else value
        if type(value).__name__ == "_CheckpointFrame":
            return id(value)
    return 0
