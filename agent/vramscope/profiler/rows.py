"""What a profile is read into: lines, allocations, kernels, and stacks that share their outer parts."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

NONE: Final = -1
"""no row, no node"""


class ProfiledLine(NamedTuple):
    """A place in the source."""

    file: str
    line: int
    last_line: int
    """the same, or larger where the profiler tells no more than that it lies between the two"""
    function: str


class Allocation(NamedTuple):
    """Memory taken, or let go (a negative size)."""

    time_ns: int
    operation: int
    """position of the innermost operation around it; NONE"""
    thread: int
    device: int
    address: int
    size_bytes: int
    total_bytes: int
    """allocated on the device afterwards, by the allocator's own count; UNKNOWN of what is let go in no operation"""
    line: int
    """node of line_chains; NONE"""


class Kernel(NamedTuple):
    """Work of the device: a kernel, a copy or a fill."""

    start_ns: int
    duration_ns: int
    operation: int
    """position of the operation that launched it; NONE"""


class SharedStacks:
    """Stacks that share their outer parts: each is a node, which knows its key and the node around it."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.keys: list[Any] = []
        self._known: dict[tuple[int, Any], int] = {}

    def node(self, parent: int, key: Any) -> int:
        known = self._known.get((parent, key))
        if known is None:
            known = self._known[parent, key] = len(self.keys)
            self.parents.append(parent)
            self.keys.append(key)
        return known

    def around(self, node: int) -> list[Any]:
        """The keys from a node outwards, each once."""
        keys: dict[Any, None] = {}
        while node != NONE:
            keys[self.keys[node]] = None
            node = self.parents[node]
        return list(keys)
