"""Tags allocator events with the running module, through PyTorch's metadata of events, in the steps that are recorded with
stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    import torch


class ModuleTags:
    """Listens to the calls of all modules for some steps. About 1 µs a module call, and no frame in a stack.

    set_tag   sets the metadata of this thread's allocator events
    """

    def __init__(self, set_tag: Callable[[str], None]) -> None:
        self._set_tag = set_tag
        self._thread = get_ident()
        self._tags: dict[int, str] = {}
        """Tag by the module's id: a dot, and the module's number."""
        self._prefix = ""
        self._inside = ""
        """Tag of the innermost running module; "" outside of all."""
        self._outer: list[str] = []
        """Tags of the modules around it."""
        self._end: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._outer.clear()
        leave = guarded("module tags")(self._leave)
        self._end = module_calls.listen_to_all(CallListener(guarded("module tags")(self._enter), leave, leave))

    def end(self) -> None:
        """Stop listening."""
        self._end()

    def phase(self, prefix: str) -> None:
        """Begin tags with ``prefix`` from now on. A forward begins within the call of the model itself."""
        self._prefix = prefix
        self._set_tag(prefix + self._inside)

    def names(self, roots: Iterable[torch.nn.Module]) -> list[str]:
        """Return the modules' names in the order of their numbers; the class's name if no root has the module."""
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
        if get_ident() == self._thread and self._outer:  # otherwise the module was entered before listening began
            self._inside = self._outer.pop()
            self._set_tag(self._prefix + self._inside)
