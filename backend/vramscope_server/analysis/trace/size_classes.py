"""Size classes: requests of a window, and free blocks at one event, by powers of two and by pool.

Class ``n`` holds sizes above 2^(n-1) and up to 2^n bytes: a request fits into each free block of a higher class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.segment_map import INACTIVE
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import Layout

POOLS: Final = ("small", "large", "private")
SMALL_BYTES: Final = 1 << 20
"""Maximum request of the small pool."""
_LOWEST: Final = 9
_CLASSES: Final = 63


@dataclass(frozen=True, eq=False)
class SizeClasses:
    """Arrays of shape (pools, classes): the pools of POOLS, and classes from ``first`` on."""

    first: int
    count: IntArray
    size_bytes: IntArray


def requests(trace: Trace) -> SizeClasses:
    """Requests of the window. Private pools have requests of all sizes."""
    events = trace.events
    is_request = events.action == ACTIONS.index("alloc")
    size = events.size_bytes[is_request]
    pool = np.where(events.pool[is_request] > 0, 2, np.where(size <= SMALL_BYTES, 0, 1))
    return _classes(size, pool)


def free_blocks(layout: Layout) -> SizeClasses:
    """Free blocks of a layout."""
    free = layout.blocks.state == INACTIVE
    home = layout.blocks.segment[free]
    pool = np.where(layout.segments.pool[home] > 0, 2, np.where(layout.segments.large[home] > 0, 1, 0))
    return _classes(layout.blocks.size_bytes[free], pool)


def _classes(size: IntArray, pool: IntArray) -> SizeClasses:
    # In integers: a logarithm in floats is off by one for large powers of two.
    bounds = np.int64(1) << np.arange(_LOWEST, _CLASSES, dtype=np.int64)
    klass = np.searchsorted(bounds, size, side="left").astype(np.int64)
    shape = (len(POOLS), len(bounds) + 1)
    count, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(count, (pool, klass), 1)
    np.add.at(total, (pool, klass), size)
    return SizeClasses(_LOWEST, count, total)
