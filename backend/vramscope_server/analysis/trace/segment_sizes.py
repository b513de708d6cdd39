"""The size of large segments that was in force, as a history shows it: PyTorch tells ``large_segment_size_mb`` nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.simulator.rounding import rounded
from vramscope_server.analysis.trace.block_sizes import SMALL_BYTES
from vramscope_server.analysis.trace.lifetimes import ALLOC, SEGMENT_ALLOC, SEGMENT_MAP

MOST_BYTES: Final = 10 << 20
"""from this size on a request has a segment of its own size"""


class Events(Protocol):
    """What is looked at of a history."""

    @property
    def action(self) -> npt.NDArray[Any]: ...
    @property
    def size_bytes(self) -> npt.NDArray[np.int64]: ...
    @property
    def stream(self) -> npt.NDArray[np.int64]: ...


def large_segment_bytes(events: Events, divisions: Sequence[int], seen: slice = slice(None)) -> int | None:
    """The size of the newest segment, or page, that was made for a request of more than 1 and less than 10 MiB: it has no other.

    divisions   of roundup_power2_divisions: what counts is the rounded request
    seen        the part of the history that is looked at

    None where no such request needed one. O(events).
    """
    action, size, stream = events.action[seen], events.size_bytes[seen], events.stream[seen]
    made = np.isin(action[:-1], (SEGMENT_ALLOC, SEGMENT_MAP)) & (action[1:] == ALLOC)
    made &= stream[:-1] == stream[1:]
    made &= (size[1:] > SMALL_BYTES // 2) & (size[1:] < MOST_BYTES)
    slots = np.array(divisions, np.int64)
    for at in np.flatnonzero(made)[::-1].tolist():
        if SMALL_BYTES < rounded(int(size[at + 1]), slots) < MOST_BYTES:
            return int(size[at])
    return None
