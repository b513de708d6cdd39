"""Finds the blocks that Python freed between two operations, such as by ``del``.

PyTorch's tree of events does not contain these frees, because without stacks its roots are operations. The flat list of events
has their size and time, but no address. So the block is chosen by size: the live block of this size whose address is allocated
again first, because it must be free by then, else the newest one. The bytes are then always right. If no live block has this
size, the block was allocated before the profile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from vramscope.profiler.rows import Allocation
from vramscope.profiler.sliced import SLICE, sliced

MEMORY: Final = "[memory]"
"""PyTorch's name of all such events."""
NEVER: Final = 1 << 62
IN_TREE: Final = -1
"""The block is freed later by an operation, so it cannot be one of these."""


class MemoryEvent(NamedTuple):
    """A memory event of the flat list."""

    time_ns: int
    size_bytes: int
    device: int
    thread: int


def addresses_of(
    events: Iterable[MemoryEvent], known: Sequence[Allocation], pause: Callable[[], None] = lambda: None
) -> list[tuple[MemoryEvent, int]]:
    """Return frees outside of operations, each with the address of its block; 0: allocated before the profile.

    known   the tree's events, in order of time
    pause   called between slices. About 3 µs an event
    """
    in_tree = Counter((event.time_ns, event.size_bytes, event.device) for event in known)
    outside: list[MemoryEvent] = []
    for one in sorted(events):
        key = one.time_ns, one.size_bytes, one.device
        if in_tree[key]:
            in_tree[key] -= 1
        elif one.size_bytes < 0:
            outside.append(one)
    pause()
    next_allocation_ns = _next_allocations(known)
    alive: dict[tuple[int, int], int] = {}  # (device, address) -> the event that allocated it
    # (device, size) -> candidates: the best comes first, and is skipped if it is no longer alive
    candidates: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    found, reached = [], 0
    for free in sliced(outside, pause):
        while reached < len(known) and known[reached].time_ns <= free.time_ns:
            event = known[reached]
            if event.size_bytes > 0:
                alive[event.device, event.address] = reached
                if next_allocation_ns[reached] != IN_TREE:
                    heappush(
                        candidates[event.device, event.size_bytes],
                        (next_allocation_ns[reached], -reached, event.address),
                    )
            else:
                alive.pop((event.device, event.address), None)
            reached += 1
            if reached % SLICE == 0:
                pause()
        found.append((free, _best_candidate(candidates[free.device, -free.size_bytes], free.device, alive)))
    return found


def _best_candidate(candidates: list[tuple[int, int, int]], device: int, alive: dict[tuple[int, int], int]) -> int:
    while candidates:
        _, event, address = heappop(candidates)
        if alive.get((device, address)) == -event:
            del alive[device, address]
            return address
    return 0


def _next_allocations(known: Sequence[Allocation]) -> list[int]:
    """Return for each event the time at which its address is next allocated; NEVER, or IN_TREE if an operation frees it."""
    at: list[int] = [NEVER] * len(known)
    next_ns: dict[tuple[int, int], int] = {}
    for number in range(len(known) - 1, -1, -1):
        event = known[number]
        key = event.device, event.address
        at[number] = next_ns.get(key, NEVER)
        next_ns[key] = event.time_ns if event.size_bytes > 0 else IN_TREE
    return at
