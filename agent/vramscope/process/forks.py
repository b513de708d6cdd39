"""Handles forks of the process: the session continues in the parent, and its copy in a child must do nothing.

CUDA does not work in a forked child, and files and connections belong to the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from vramscope.guard import guarded


class ForkListener(Protocol):
    def before_fork(self) -> None: ...
    def forget_in_child(self) -> None: ...


_listeners: weakref.WeakSet[ForkListener] = weakref.WeakSet()


def watch_forks(listener: ForkListener) -> None:
    """Call the listener at each fork until :func:`unwatch_forks`. No strong reference to the listener is kept."""
    _listeners.add(listener)


def unwatch_forks(listener: ForkListener) -> None:
    _listeners.discard(listener)


@guarded("the fork")
def _before_fork() -> None:
    for listener in list(_listeners):
        listener.before_fork()


@guarded("the fork")
def _after_fork_in_child() -> None:
    for listener in list(_listeners):
        listener.forget_in_child()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
