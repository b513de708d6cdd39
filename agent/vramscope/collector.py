"""Python's garbage collector, kept quiet while many objects are made at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile, and the user's setting as it was afterwards.

    A tree of a hundred thousand objects would set off dozens of collections, over all that the process holds: seconds with a
    large heap. And a look at what is held must not set off the collection of what it looks for.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
