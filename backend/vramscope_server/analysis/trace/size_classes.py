"""Size classes: what the run asked for in a window, and what is free at one moment, by powers of two and by pool.

Class ``n`` holds sizes above 2^(n-1) and up to 2^n bytes: a request of the class fits into each free piece of a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.trace.segment_map import INACTIVE
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import Layout

Whole = npt.NDArray[np.int64]

POOLS: Final = ("small", "large", "private")
SMALL_BYTES: Final = 1 << 20
"""Requests up to it come from the small pool."""
_LOWEST: Final = 9
_CLASSES: Final = 63


@dataclass(frozen=True, eq=False)
class SizeClasses:
    """``count`` and ``size_bytes`` have the shape (pools, classes): what POOLS names, and classes from ``first`` on."""

    first: int
    count: Whole
    size_bytes: Whole


def requests(trace: Trace) -> SizeClasses:
    """All requests of the window. In a private pool: of any size."""
    events = trace.events
    asked = events.action == ACTIONS.index("alloc")
    size = events.size_bytes[asked]
    pool = np.where(events.pool[asked] > 0, 2, np.where(size <= SMALL_BYTES, 0, 1))
    return _classes(size, pool)


def free_pieces(layout: Layout) -> SizeClasses:
    """The free blocks at one moment."""
    free = layout.blocks.state == INACTIVE
    home = layout.blocks.segment[free]
    pool = np.where(layout.segments.pool[home] > 0, 2, np.where(layout.segments.large[home] > 0, 1, 0))
    return _classes(layout.blocks.size_bytes[free], pool)


def _classes(size: Whole, pool: Whole) -> SizeClasses:
    # In whole numbers: a logarithm in floats is off by one where sizes are large powers of two.
    bounds = np.int64(1) << np.arange(_LOWEST, _CLASSES, dtype=np.int64)
    klass = np.searchsorted(bounds, size, side="left").astype(np.int64)
    shape = (len(POOLS), len(bounds) + 1)
    count, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(count, (pool, klass), 1)
    np.add.at(total, (pool, klass), size)
    return SizeClasses(_LOWEST, count, total)
