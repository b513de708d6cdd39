"""What Python lets go between two operations: PyTorch's tree of events leaves it out, and its flat list tells no address.

Without stacks the tree begins with operations; a ``del`` of the training's stands in none. The flat list has its size and its
time. Which block it was follows from the size: of those of that size that are alive, the one whose address is given out again
first, which must be gone by then; else the newest. So the bytes are right, and the block is one of equal size. Where none is of
that size, it was there before the profile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from vramscope.profiler.rows import Allocation
from vramscope.profiler.sliced import SLICE, sliced

MEMORY: Final = "[memory]"
"""PyTorch's name of all such events"""
STAYS: Final = 1 << 62
IN_TREE: Final = -1
"""it is let go later, by an operation: it is none of these"""


class MemoryEvent(NamedTuple):
    """An event of the flat list."""

    time_ns: int
    size_bytes: int
    device: int
    thread: int


def addresses_of(
    told: Iterable[MemoryEvent], known: Sequence[Allocation], pause: Callable[[], None] = lambda: None
) -> list[tuple[MemoryEvent, int]]:
    """Those that are let go in no operation, each with the address of its block; 0: it was there before the profile.

    known   the tree's, in order of time
    pause   called now and then. Some 3 µs an event
    """
    in_tree = Counter((event.time_ns, event.size_bytes, event.device) for event in known)
    outside: list[MemoryEvent] = []
    for one in sorted(told):
        key = one.time_ns, one.size_bytes, one.device
        if in_tree[key]:
            in_tree[key] -= 1
        elif one.size_bytes < 0:
            outside.append(one)
    pause()
    again_ns = _given_again(known)
    alive: dict[tuple[int, int], int] = {}  # (device, address) -> the event that gave it
    # (device, size) -> what may be it: the best is taken out first, and passed over where it is no longer alive
    may_be: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    found, reached = [], 0
    for free in sliced(outside, pause):
        while reached < len(known) and known[reached].time_ns <= free.time_ns:
            event = known[reached]
            if event.size_bytes > 0:
                alive[event.device, event.address] = reached
                if again_ns[reached] != IN_TREE:
                    heappush(may_be[event.device, event.size_bytes], (again_ns[reached], -reached, event.address))
            else:
                alive.pop((event.device, event.address), None)
            reached += 1
            if reached % SLICE == 0:
                pause()
        found.append((free, _taken(may_be[free.device, -free.size_bytes], free.device, alive)))
    return found


def _taken(may_be: list[tuple[int, int, int]], device: int, alive: dict[tuple[int, int], int]) -> int:
    while may_be:
        _, event, address = heappop(may_be)
        if alive.get((device, address)) == -event:
            del alive[device, address]
            return address
    return 0


def _given_again(known: Sequence[Allocation]) -> list[int]:
    """For each event the time at which its address is next given out; STAYS: never; IN_TREE."""
    at: list[int] = [STAYS] * len(known)
    next_ns: dict[tuple[int, int], int] = {}
    for number in range(len(known) - 1, -1, -1):
        event = known[number]
        place = event.device, event.address
        at[number] = next_ns.get(place, STAYS)
        next_ns[place] = event.time_ns if event.size_bytes > 0 else IN_TREE
    return at
