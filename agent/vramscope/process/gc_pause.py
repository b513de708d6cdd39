"""Pauses Python's garbage collector while many objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False
"""True if the collector is paused here and would run otherwise."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection, and restore the user's setting afterwards.

    Making a tree of a hundred thousand objects would start dozens of collections over the whole process: seconds with a
    large heap. And a scan for retained memory must not collect what it searches for.

    """
    global _paused
    enabled, outer = gc.isenabled(), _paused
    gc.disable()
    _paused = enabled or outer
    try:
        yield
    finally:
        _paused = outer
        if enabled:
            gc.enable()


def collector_runs() -> bool:
    """Return whether the program lets the collector run. False after ``gc.disable()``, as in trainings that collect every N
    steps."""
    return _paused or gc.isenabled()


def collect_young() -> None:
    """Collect the young objects now, if the collector may run: after many were made, the next collection is a long one."""
    if gc.isenabled():
        gc.collect(1)
