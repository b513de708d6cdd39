"""Detects duplicate events of a snapshot: two overlapping histories, or one event recorded twice."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import entry, inner
from vramscope_server.analysis.trace.types import ALLOC, FREE_COMPLETED, SEGMENT_UNMAP

_MAX_SAME_TIME: Final = 1000
"""Maximum number of events of one microsecond that are compared."""


@entry
def repeats(action: Any, address: Any, size: Any, stream: Any, time: Any, pool: Any, stack: Any) -> Any:
    """Whether each event certainly repeats another one. About 5 ns per event.

    It equals an earlier event in all columns, and is out of order in time; or it is in the same microsecond, and nothing else
    happened at its address in between, because nothing is allocated or freed twice in a row. Without times nothing is certain.
    """
    frees = False  # without recorded frees, an address may be allocated again
    for event in range(len(action)):
        frees = frees or (action[event] > ALLOC and action[event] <= FREE_COMPLETED)
    found = np.zeros(len(action), np.bool_)
    ordered, count = np.empty(len(action), np.int64), 0  # events in the order of time
    for event in range(len(action)):
        now = time[event]
        if now < 0:
            continue
        newest = time[ordered[count - 1]] if count else np.int64(-1)
        late = now < newest
        if late or (action[event] <= SEGMENT_UNMAP and (frees or action[event] != ALLOC)):
            at = (_as_old(time, ordered, count, now) if late else count) - 1
            last = max(at - _MAX_SAME_TIME, -1)
            while at > last and time[ordered[at]] == now:
                other = ordered[at]
                if address[other] == address[event]:
                    found[event] = (
                        action[other] == action[event] and size[other] == size[event] and stream[other] == stream[event]
                        and pool[other] == pool[event] and stack[other] == stack[event]
                    )  # fmt: skip
                    if found[event] or not late:
                        break
                at -= 1
        if not late and not found[event]:
            ordered[count] = event
            count += 1
    return found


@inner
def _as_old(time: Any, ordered: Any, count: int, now: int) -> int:
    """Number of events that are not newer than ``now``."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if time[ordered[middle]] <= now:
            low = middle + 1
        else:
            high = middle
    return low
