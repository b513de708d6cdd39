"""The size of large segments that was in force, as a history shows it: PyTorch tells ``large_segment_size_mb`` nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.history.block_sizes import SMALL_BYTES
from vramscope_server.analysis.history.lives import ALLOC, SEGMENT_ALLOC, SEGMENT_MAP
from vramscope_server.analysis.simulator.rounding import rounded

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


def large_segment_bytes(events: Events, divisions: Sequence[int]) -> int | None:
    """The size of the newest segment, or page, that was made for a request of more than 1 and less than 10 MiB: it has no other.

    divisions   of roundup_power2_divisions: what counts is the rounded request

    None where no such request needed one. O(events).
    """
    made = np.isin(events.action[:-1], (SEGMENT_ALLOC, SEGMENT_MAP)) & (events.action[1:] == ALLOC)
    made &= events.stream[:-1] == events.stream[1:]
    made &= (events.size_bytes[1:] > SMALL_BYTES // 2) & (events.size_bytes[1:] < MOST_BYTES)
    slots = np.array(divisions, np.int64)
    for at in np.flatnonzero(made)[::-1].tolist():
        if SMALL_BYTES < rounded(int(events.size_bytes[at + 1]), slots) < MOST_BYTES:
            return int(events.size_bytes[at])
    return None
