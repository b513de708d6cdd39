"""What Python lets go between two operations: PyTorch's tree of events leaves it out, and its flat list tells no address.

Without stacks the tree begins with operations; a ``del`` of the training's stands in none. The flat list has its size and its
time. Which block it was follows from the size: of those of that size that are alive, the one whose address is given out again
first, which must be gone by then; else the newest. So the bytes are right, and the block is one of equal size. Where none is of
that size, it was there before the profile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from vramscope.profile.reading import Allocation

MEMORY: Final = "[memory]"
"""PyTorch's name of all such events"""
STAYS: Final = 1 << 62
IN_TREE: Final = -1
"""it is let go later, by an operation: it is none of these"""


class Told(NamedTuple):
    """An event of the flat list."""

    time_ns: int
    size_bytes: int
    device: int
    thread: int


def addresses_of(told: Iterable[Told], known: Sequence[Allocation]) -> list[tuple[Told, int]]:
    """Those that are let go in no operation, each with the address of its block; 0: it was there before the profile.

    known   the tree's, in order of time
    """
    in_tree = Counter((event.time_ns, event.size_bytes, event.device) for event in known)
    outside: list[Told] = []
    for one in sorted(told):
        key = one.time_ns, one.size_bytes, one.device
        if in_tree[key]:
            in_tree[key] -= 1
        elif one.size_bytes < 0:
            outside.append(one)
    again_ns = _given_again(known)
    alive: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (device, size) -> address -> its event
    found, reached = [], 0
    for free in outside:
        while reached < len(known) and known[reached].time_ns <= free.time_ns:
            event = known[reached]
            blocks = alive[event.device, abs(event.size_bytes)]
            blocks.pop(event.address, None)
            if event.size_bytes > 0:
                blocks[event.address] = reached
            reached += 1
        blocks = alive[free.device, -free.size_bytes]
        may_be = [address for address, event in blocks.items() if again_ns[event] != IN_TREE]
        address = min(may_be, key=lambda one: (again_ns[blocks[one]], -blocks[one]), default=0)
        blocks.pop(address, None)
        found.append((free, address))
    return found


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
