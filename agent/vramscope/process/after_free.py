"""Call a listener when an object is dead and its memory is free.

The callback of a weak reference is too early: it runs before a tensor's memory is freed, so the allocator still counts that
memory. Here the callback asks Python for a pending call instead. Python makes such a call on the main thread, between two
instructions, as it does for signals. It may make one within any Python function. So the callback is made of C functions
alone: the listener then runs after the whole object is gone.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol


class FreeListener(Protocol):
    def freed(self) -> None:
        """Called when the object is dead and its memory is free."""


_listeners: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
"""Listeners by the ``id()`` of their weak reference."""


def after_free(watched: Any, listener: FreeListener) -> weakref.ref[Any]:
    """Call ``listener.freed()`` on the main thread soon after ``watched`` has died.

    Python stores 32 pending calls; if more are waiting, this call is lost. The caller must keep references to ``listener`` and to
    the result, or nothing is called. Python runs the callbacks of an object's weak references from the newest to the oldest, so
    this one must be created first if it has to run last.
    """
    reference = weakref.ref(watched, _request_call)
    _listeners[id(reference)] = listener
    return reference


def _call_listener(address: int) -> int:
    listener = _listeners.pop(address, None)
    if listener is not None:
        listener.freed()
    return 0


_pending_call: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_call_listener)
# A function object of its own, so that its argument types are not shared.
_add_pending_call: Final = ctypes.pythonapi["Py_AddPendingCall"]
_add_pending_call.argtypes = (type(_pending_call), ctypes.py_object)
_request_call: Final[Callable[[Any], object]] = functools.partial(_add_pending_call, _pending_call)
