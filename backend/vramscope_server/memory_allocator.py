"""Settings of the C library's allocator, so that a server gives memory back that it used for a figure or a request."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX of glibc's malloc.h."""
LARGE_BYTES: Final = 128 * 1024
"""Allocations from this size on go back to the system when they are freed. It is glibc's own default, which rises by itself
up to 32 MiB after the first large allocation was freed; arrays then leave holes among small objects."""
ARENAS: Final = 2
"""Maximum number of heaps; by default eight a core, and each thread fragments its own."""


def return_freed_memory() -> bool:
    """Make glibc return freed memory early. False if it is another C library, or the user's environment sets it already."""
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or any(n.startswith("MALLOC_") for n in os.environ):
        return False
    with contextlib.suppress(AttributeError, OSError):  # musl has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        values = ((_MMAP_THRESHOLD, LARGE_BYTES), (_TRIM_THRESHOLD, LARGE_BYTES), (_ARENA_MAX, ARENAS))
        return all(mallopt(name, value) == 1 for name, value in values)
    return False
