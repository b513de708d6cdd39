"""A call that Python makes a moment after a thing has died: between two instructions of the main thread, like a signal's handler.

The callback of a weak reference comes before what a tensor had is freed, so the allocator's counters still have it in them. And
Python may make such a pending call within any function of ours: only what is asked for by C alone comes after the whole death.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol


class FreeListener(Protocol):
    def freed(self) -> None:
        """A thing is dead, and its memory is free."""


_mourners: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
"""Listeners by the id of the dead reference."""


def after_free(thing: Any, mourner: FreeListener) -> weakref.ref[Any]:
    """Call ``mourner.freed()`` on the main thread soon after; where more wait than Python remembers (32), not at all. Keep both.

    Of several references to a thing the callback of the one that was made first comes last: make this one first.
    """
    reference = weakref.ref(thing, _ask)
    _mourners[id(reference)] = mourner
    return reference


def _freed(address: int) -> int:
    mourner = _mourners.pop(address, None)
    if mourner is not None:
        mourner.freed()
    return 0


_run: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_freed)
# A function object of its own, so that its argument types are not shared.
_add: Final = ctypes.pythonapi["Py_AddPendingCall"]
_add.argtypes = (type(_run), ctypes.py_object)
_ask: Final[Callable[[Any], object]] = functools.partial(_add, _run)
