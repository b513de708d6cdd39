"""Which module runs: tells the allocator, through the metadata of its events, in the few steps in which that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    import torch


class ModuleTags:
    """Listens to the calls of all modules, for the time of some steps. About 1 µs a module call, and no frame in a stack.

    set_tag   sets the metadata of this thread's allocator events
    """

    def __init__(self, set_tag: Callable[[str], None]) -> None:
        self._set_tag = set_tag
        self._thread = get_ident()
        self._tags: dict[int, str] = {}
        """by id(): a dot, and the module's number"""
        self._prefix = ""
        self._inside = ""
        """tag of the innermost module that runs; "" outside of all"""
        self._outer: list[str] = []
        """Tags of the modules around it."""
        self._end: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._outer.clear()
        leave = guarded("module tags")(self._leave)
        self._end = module_calls.listen_to_all(CallListener(guarded("module tags")(self._enter), leave, leave))

    def end(self) -> None:
        """Listen no more."""
        self._end()

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

    def _enter(self, module: Any, *_: Any) -> None:
        if get_ident() != self._thread:
            return
        try:
            tag = self._tags[id(module)]
        except KeyError:
            tag = self._tags[id(module)] = f".{len(self._tags)}"
        self._outer.append(self._inside)
        self._inside = tag
        self._set_tag(self._prefix + tag)

    def _leave(self, *_: Any) -> None:
        if get_ident() == self._thread and self._outer:  # (else it was entered before we listened)
            self._inside = self._outer.pop()
            self._set_tag(self._prefix + self._inside)
