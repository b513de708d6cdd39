"""Events that stand twice in a file: two histories put together that overlap, or one event told again."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import entry, inner
from vramscope_server.analysis.trace.types import ALLOC, FREE_COMPLETED, SEGMENT_UNMAP

_MOST: Final = 1000
"""events of one microsecond that are looked at for each"""


@entry
def repeats(action: Any, address: Any, size: Any, stream: Any, time: Any, pool: Any, stack: Any) -> Any:
    """Which of these events are surely others told again. Some 5 ns an event.

    Such a one is equal to an earlier event in all columns, and out of the order of time; or it is in the same microsecond, and
    nothing else happened at its address in between: nothing is taken twice, and nothing let go twice. Without a time nothing
    is sure.
    """
    frees = False  # where none is recorded, a block may be taken again
    for event in range(len(action)):
        frees = frees or (action[event] > ALLOC and action[event] <= FREE_COMPLETED)
    found = np.zeros(len(action), np.bool_)
    ordered, count = np.empty(len(action), np.int64), 0  # those that follow each other in time
    for event in range(len(action)):
        now = time[event]
        if now < 0:
            continue
        newest = time[ordered[count - 1]] if count else np.int64(-1)
        late = now < newest
        if late or (action[event] <= SEGMENT_UNMAP and (frees or action[event] != ALLOC)):
            at = (_as_old(time, ordered, count, now) if late else count) - 1
            last = max(at - _MOST, -1)
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
