"""Python's garbage collector, kept quiet while many objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False
"""it would run, if it were not paused here"""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile, and the user's setting as it was afterwards.

    A tree of a hundred thousand objects would set off dozens of collections, over all that the process holds: seconds with a
    large heap. And a look at what is held must not set off the collection of what it looks for.
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


def collector_comes_by() -> bool:
    """Whether the program lets it run: not where it called ``gc.disable()``, as trainings do that collect every so many steps."""
    return _paused or gc.isenabled()
