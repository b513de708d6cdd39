"""Pools of events without one, as before PyTorch 2.13: the pools of their segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.types import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_UNMAP

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.types import Segments


def pools_at(pool: npt.NDArray[Any], action: Any, address: Any, segments: Segments) -> npt.NDArray[Any]:
    """Column ``pool`` with unknown values (-1) filled in. O(events log segments).

    A segment of a private pool that exists at the end gives the pool of all events in it since it was made. For segments that
    are gone by then the pool stays unknown.
    """
    private = np.flatnonzero(segments.pool > 0)
    unknown = np.flatnonzero((pool < 0) & (action <= SEGMENT_UNMAP))
    if not len(private) or not len(unknown):
        return pool
    low = segments.address[private]
    high = low + segments.size_bytes[private]
    home = np.searchsorted(low, address[unknown], side="right") - 1
    inside = (home >= 0) & (address[unknown] < high[np.maximum(home, 0)])
    event, home = unknown[inside], home[inside]
    since = np.zeros(len(private), np.int64)
    for kind, later in ((SEGMENT_ALLOC, 0), (SEGMENT_FREE, 1), (SEGMENT_UNMAP, 1)):
        of_kind = action[event] == kind
        np.maximum.at(since, home[of_kind], event[of_kind] + later)
    own = event >= since[home]
    filled: npt.NDArray[Any] = pool.copy()
    filled[event[own]] = segments.pool[private][home[own]]
    return filled
