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

    It equals an earlier event in all columns, and one of three is true. It is out of order in time. Or the event before it is
    such a repeat, and the event after that one's original is this one's. Or it is in the same microsecond, and nothing else
    happened at its address in between, because nothing is allocated or freed twice in a row. Without times nothing is certain.
    """
    frees = False  # without recorded frees, an address may be allocated again
    for event in range(len(action)):
        frees = frees or (action[event] > ALLOC and action[event] <= FREE_COMPLETED)
    found = np.zeros(len(action), np.bool_)
    ordered, count = np.empty(len(action), np.int64), 0  # events in the order of time
    original = -2  # place in ``ordered`` of the event that the event before this one repeats
    for event in range(len(action)):
        now = time[event]
        if now < 0:
            original = -2
            continue
        newest = time[ordered[count - 1]] if count else np.int64(-1)
        late = now < newest
        following, original = original + 1, -2
        if 0 <= following < count and _equal(action, address, size, stream, pool, stack, ordered[following], event):
            found[event] = time[ordered[following]] == now
            original = following if found[event] else -2
        if not found[event] and (late or (action[event] <= SEGMENT_UNMAP and (frees or action[event] != ALLOC))):
            at = (_as_old(time, ordered, count, now) if late else count) - 1
            last = max(at - _MAX_SAME_TIME, -1)
            while at > last and time[ordered[at]] == now:
                if address[ordered[at]] == address[event]:
                    found[event] = _equal(action, address, size, stream, pool, stack, ordered[at], event)
                    if found[event] and late:
                        original = at
                    if found[event] or not late:
                        break
                at -= 1
        if not late and not found[event]:
            ordered[count] = event
            count += 1
    return found


@inner
def _equal(action: Any, address: Any, size: Any, stream: Any, pool: Any, stack: Any, one: int, other: int) -> Any:
    """Whether two events of the same time are equal in all other columns."""
    return (
        action[one] == action[other] and address[one] == address[other] and size[one] == size[other]
        and stream[one] == stream[other] and pool[one] == pool[other] and stack[one] == stack[other]
    )  # fmt: skip


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
