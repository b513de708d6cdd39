"""Pauses Python's garbage collector while many objects are made at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_lock: Final = threading.RLock()
"""Reentrant, because a signal handler may pause the collector while the same thread does."""
_depth = 0
"""Number of pauses that are in effect, in all threads."""
_enabled = False
"""True if the collector ran before the first of them."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection, and restore the user's setting afterwards.

    Creating a tree of a hundred thousand objects would start dozens of collections of the whole process, which take seconds
    with a large heap. And a scan for retained memory must not free the objects that it searches for.
    """
    global _depth, _enabled
    with _lock:
        if _depth == 0:
            _enabled = gc.isenabled()
            gc.disable()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _enabled:
                gc.enable()


def collector_runs() -> bool:
    """Return whether the program lets the collector run. False after ``gc.disable()``, as in trainings that collect every N
    steps."""
    return (_depth > 0 and _enabled) or gc.isenabled()


def collect_youngest() -> None:
    """Collect the youngest objects now, if the collector may run: after many were made, the next collection takes long.

    Python counts collections of older objects, and collects everything after ten of them. One of ours would bring that forward,
    into a step of the training (0.1 s in a process that has imported transformers).
    """
    if gc.isenabled():
        gc.collect(0)
