"""Which module runs: tells the allocator, through the metadata of its events, in the few steps in which that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded

if TYPE_CHECKING:
    import torch


class ModuleTags:
    """A function in front of ``torch.nn.Module.__call__``, for the time of some steps; gone afterwards.

    About 1 µs a module call. Global forward hooks would take four times that, and a frame more in each allocation's stack.

    set_tag   sets the metadata of this thread's allocator events
    """

    def __init__(self, set_tag: Callable[[str], None]) -> None:
        import torch

        self._set_tag = set_tag
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._class: Any = torch.nn.Module
        self._thread = get_ident()
        self._tags: dict[int, str] = {}
        """by id(): a dot, and the module's number"""
        self._prefix = ""
        self._inside = ""
        """tag of the innermost module that runs; "" outside of all"""
        self._on = False
        self._put_back: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._on = True
        original, is_compiling = self._class.__call__, self._is_compiling
        enter, leave = guarded("module tags")(self._enter), guarded("module tags")(self._leave)
        is_pytorchs = original is getattr(self._class, "_wrapped_call_impl", None)

        @wraps(original)
        def tagged(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # torch.compile traces this function: nothing of ours is left in what it makes
                return original(module, *args, **kwargs)
            outer = enter(module)
            try:
                if is_pytorchs and module._compiled_call_impl is None:
                    return module._call_impl(*args, **kwargs)  # which is all that the original does, and a frame less
                return original(module, *args, **kwargs)
            finally:
                if outer is not None:
                    leave(outer)

        def put_back() -> None:
            if self._class.__call__ is tagged:
                self._class.__call__ = original

        self._class.__call__, self._put_back = tagged, put_back

    def end(self) -> None:
        """PyTorch's own again; where somebody has put a function in front of ours, ours only passes the call on."""
        self._on = False
        self._put_back()

    def phase(self, prefix: str) -> None:
        """Another phase begins: tags begin with this from now on. A forward begins within the call of the model itself."""
        self._prefix = prefix
        self._set_tag(prefix + self._inside)

    def names(self, roots: Iterable[torch.nn.Module]) -> list[str]:
        """The modules' names, in the order of their numbers; the class's name where the root does not know it."""
        names = dict.fromkeys(self._tags, "a module of no known model")
        for root in roots:
            for name, module in root.named_modules():
                if id(module) in names:
                    names[id(module)] = name or type(module).__name__
        return list(names.values())

    def _enter(self, module: Any) -> str | None:
        """The tag to go back to; None where this call is not told: another thread's, or after the end."""
        if not self._on or get_ident() != self._thread:
            return None
        try:
            tag = self._tags[id(module)]
        except KeyError:
            tag = self._tags[id(module)] = f".{len(self._tags)}"
        outer, self._inside = self._inside, tag
        self._set_tag(self._prefix + tag)
        return outer

    def _leave(self, outer: str) -> None:
        if self._on:
            self._inside = outer
            self._set_tag(self._prefix + outer)


def is_compiled() -> bool:
    """Whether torch.compile has been at work: a function in front of a module's call would make it compile again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return bool(counters and counters.get("frames"))
