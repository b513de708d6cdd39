"""Size of large segments in force, read from the events. PyTorch does not report ``large_segment_size_mb``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.rounding import rounded
from vramscope_server.analysis.trace.block_sizes import SMALL_BYTES
from vramscope_server.analysis.trace.types import ALLOC, SEGMENT_ALLOC, SEGMENT_MAP, Codes

OWN_SEGMENT_BYTES: Final = 10 << 20
"""From this size on a request gets a segment of its own size."""


def large_segment_bytes(action: Codes, size: IntArray, stream: IntArray, divisions: Sequence[int]) -> int | None:
    """Size of the newest segment or page that was made for a request of more than 1 and less than 10 MiB.

    divisions   of roundup_power2_divisions; the rounded request counts

    None if no such request needed one. O(events).
    """
    made = np.isin(action[:-1], (SEGMENT_ALLOC, SEGMENT_MAP)) & (action[1:] == ALLOC)
    made &= stream[:-1] == stream[1:]
    made &= (size[1:] > SMALL_BYTES // 2) & (size[1:] < OWN_SEGMENT_BYTES)
    slots = np.array(divisions, np.int64)
    for at in np.flatnonzero(made)[::-1].tolist():
        if SMALL_BYTES < rounded(int(size[at + 1]), slots) < OWN_SEGMENT_BYTES:
            return int(size[at])
    return None
