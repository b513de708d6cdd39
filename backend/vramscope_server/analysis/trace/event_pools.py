"""Pools of events that do not tell theirs, as before PyTorch 2.13: those of the segments in which they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.types import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_UNMAP

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.types import Segments


def pools_at(pool: npt.NDArray[Any], action: Any, address: Any, segments: Segments) -> npt.NDArray[Any]:
    """The column ``pool`` with what is unknown (-1) filled in. O(events log segments).

    A segment of a private pool that is there at the end tells the pool of all that was done in it since it was made. Of one that
    is gone by then nothing tells.
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
    filled = pool.copy()
    filled[event[own]] = segments.pool[private][home[own]]
    return filled
