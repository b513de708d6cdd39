"""Which modules ran inside a checkpoint, and which of them ran again in backward.

PyTorch's own checkpoint is told from its frames and its saved-tensor hooks. A module that ran without gradients and again,
with gradients, within backward was checkpointed too, by whatever function (DeepSpeed's, Unsloth's). A function that calls no
module is heard by the hooks that go up around it, or is found in the graph.
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
from vramscope.techniques.function_bindings import MOST_FRAMES, Bindings

if TYPE_CHECKING:
    import torch

NON_REENTRANT, REENTRANT, OTHER = "non-reentrant", "reentrant", "other"
SELECTIVE: Final = f"{NON_REENTRANT}, selective"
"""a policy says of each operation whether what it gives is kept"""
NEAR_FRAMES: Final = 12
"""from the hooks of a checkpoint that go up out to the checkpoint itself, with those of ours"""


class Given(NamedTuple):
    """What a checkpoint was given, as name and number: nothing of it is kept."""

    name: str
    code: int


class Regions:
    """Of one observed step. Modules are known by their id: they are compared within the step and named right after it."""

    def __init__(self) -> None:
        import torch.utils.checkpoint as library
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        self._mode: Callable[[], object] = _get_current_dispatch_mode
        self._checkpoint: CodeType = inspect.unwrap(library.checkpoint).__code__
        self.inside: set[int] = set()
        self.without_gradients: set[int] = set()
        self.again: Counter[int] = Counter()
        self._variants: dict[int, str] = {}
        self.unset_at: tuple[str, int] | None = None
        """where ``checkpoint`` was called without use_reentrant"""
        self.bindings = Bindings()
        self._owners: dict[int, int] = {}
        self._given: dict[int, Given] = {}
        """PyTorch's note of a checkpoint, by identity -> what it was given"""
        self._given_again: dict[Given, str] = {}
        """-> variant"""
        self._calls_modules: set[Given] = set()

    def recomputed(self, models: Iterable[torch.nn.Module], called: set[int]) -> set[int]:
        """Modules that ran in a checkpoint, or without gradients, and again in backward: the whole that was checkpointed, where
        that is known (a block whose forward is called directly is not heard itself), else each.

        called   all that were called in the step: a module of which some ran outside was checkpointed in part, by a method
        """
        outside = called - self._owners.keys()
        owners = set(self._owners.values())
        parts = {
            id(module)
            for module in models
            if id(module) in owners and any(id(own) in outside for own in module.modules() if own is not module)
        }
        heard = set(self.again) & (self.inside | self.without_gradients)
        owned = {module: self._owners.get(module, module) for module in heard}
        return {module if owner in parts else owner for module, owner in owned.items()}

    @property
    def functions(self) -> dict[str, str]:
        """Names of functions that ran in a checkpoint and again in backward, and called no module themselves -> variant."""
        return {given.name: variant for given, variant in self._given_again.items() if given not in self._calls_modules}

    def entered(self, pack: Any) -> None:
        """PyTorch's non-reentrant checkpoint begins: its saved-tensor hooks go up. Some 2 µs."""
        note = _note(pack)
        frame: FrameType | None = sys._getframe(1)
        for _ in range(NEAR_FRAMES):
            if frame is None or not note:
                return
            if frame.f_code is self._checkpoint:
                given = _given(locals_of(frame).get("function"))
                if given is not None:
                    self._given[note] = given
                return
            frame = frame.f_back

    def entered_again(self, pack: Any) -> None:
        """Within backward such a checkpoint runs its function again, with other hooks."""
        given = self._given.get(_note(pack))
        if given is not None:
            self._given_again[given] = NON_REENTRANT

    def in_graph(self, functions: Iterable[Any]) -> None:
        """Functions that reentrant checkpoints left in the graph: its walk runs them."""
        for given in map(_given, functions):
            if given is not None:
                self._given_again[given] = REENTRANT

    def called_in_checkpoint(self, module: torch.nn.Module) -> None:
        """PyTorch's non-reentrant checkpoint is around this call."""
        self.inside.add(id(module))
        by_policy = type(self._mode()).__name__ == "_CachingTorchDispatchMode"
        self._variants[id(module)] = SELECTIVE if by_policy else NON_REENTRANT
        self._read_frames(module)

    def called_without_gradients(self, module: torch.nn.Module) -> bool:
        """Gradients are off: whether PyTorch's reentrant checkpoint is around this call."""
        if self._read_frames(module) == REENTRANT:
            self.inside.add(id(module))
            self._variants[id(module)] = REENTRANT
            return True
        self.without_gradients.add(id(module))  # within the other variant too, where the user has switched them off
        return False

    def called_again(self, module: torch.nn.Module, with_gradients: bool) -> None:
        """A module runs within backward."""
        self.bindings.called_again(module)
        if id(module) in self._owners:
            self.again[id(module)] += 1
        elif with_gradients:  # (without, it is something of a hook's, and recomputes nothing)
            self.again[id(module)] += 1
            if id(module) in self.without_gradients:
                self._variants.setdefault(id(module), OTHER)

    def variants_of(self, modules: set[int]) -> set[str]:
        """The variants that were around these."""
        return {
            variant
            for module, variant in self._variants.items()
            if module in modules or self._owners.get(module) in modules
        }

    def _read_frames(self, module: torch.nn.Module) -> str:
        """Look outwards for ``checkpoint``: its variant; "" where there is none. Some 2 µs."""
        frame: FrameType | None = sys._getframe(3)
        for _ in range(MOST_FRAMES):
            if frame is None:
                return ""
            if frame.f_code is self._checkpoint:
                given_to = locals_of(frame)
                function = given_to.get("function")
                self.bindings.called(function, module)
                self._owners[id(module)] = id(_owner(function) or module)
                given = _given(function)
                if given is not None:
                    self._calls_modules.add(given)
                if self.unset_at is None:
                    self._look_for_use_reentrant(frame)
                return REENTRANT if given_to.get("use_reentrant", True) else NON_REENTRANT
            frame = frame.f_back
        return ""

    def _look_for_use_reentrant(self, frame: FrameType) -> None:
        """The decorator around ``checkpoint`` has the arguments as they were given; the user's line is further out."""
        given: FrameType | None = frame.f_back
        left_out = False
        while given is not None and is_library(given.f_code.co_filename):
            if given.f_code.co_name == "inner" and "_compile" in given.f_code.co_filename:
                left_out = locals_of(given).get("kwargs", {"use_reentrant": False}).get("use_reentrant") is None
            elif given.f_code.co_name == "checkpoint_sequential" and given.f_back is not None:
                # It passes on True where it was given nothing, and warns: what it was given is on the user's line alone.
                left_out = not _says(given.f_back, "use_reentrant")
            given = given.f_back
        if left_out and given is not None and not is_own(given.f_code.co_filename):
            self.unset_at = (given.f_code.co_filename, given.f_lineno)


def _says(frame: FrameType, keyword: str) -> bool:
    """Whether the call that runs in a frame names this keyword, or may hand it over in a ``**mapping``: by its bytecode.

    Names stand before the call: KW_NAMES in Python 3.11 and 3.12, a constant of names in others. Some 0.2 µs an instruction.
    """
    names: Any = ()
    constant: Any = ()
    calls = ""
    for one in dis.get_instructions(frame.f_code):
        if one.offset > frame.f_lasti:
            break
        if calls:
            names = ()  # they were of another call
        calls = one.opname if one.opname.startswith("CALL") else ""
        if one.opname == "KW_NAMES":
            names = frame.f_code.co_consts[one.arg or 0]
        elif one.opname == "LOAD_CONST" and type(one.argval) is tuple:
            constant = one.argval
        elif one.opname in ("CALL_FUNCTION_KW", "CALL_KW"):
            names = constant
    return not calls or calls == "CALL_FUNCTION_EX" or keyword in names


def _owner(function: Any) -> torch.nn.Module | None:
    """The module that a checkpointed function stands for: itself, the one whose method it is, or a partial's first argument."""
    if isinstance(function, functools.partial):
        first = function.args[0] if function.args else function.keywords.get("self")
        return first if _is_module(type(first)) else _owner(function.func)
    if isinstance(function, MethodType):
        function = function.__self__
    return function if _is_module(type(function)) else None


def _given(function: Any) -> Given | None:
    """None for a module, whose call is heard."""
    while isinstance(function, functools.partial):
        function = function.func
    of = ""
    if isinstance(function, MethodType):
        owner = function.__self__
        of = f"{(owner if isinstance(owner, type) else type(owner)).__name__}."
        function = function.__func__
    if isinstance(function, FunctionType):
        return Given(of + function.__name__, id(function.__code__))
    kind = type(function)
    return None if _is_module(kind) else Given(kind.__name__, id(kind))


def _is_module(kind: type) -> bool:
    from torch import nn

    return issubclass(kind, nn.Module)


def _note(pack: Any) -> int:
    """The identity of PyTorch's note of a checkpoint, which the functions that pack its tensors have around them; else 0."""
    for cell in getattr(inspect.unwrap(pack), "__closure__", None) or ():
        value = cell.cell_contents
        value = value() if isinstance(value, weakref.ref) else value
        if type(value).__name__ == "_CheckpointFrame":
            return id(value)
    return 0
