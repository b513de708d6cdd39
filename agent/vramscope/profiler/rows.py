"""Types of a profile's data: lines, allocations, kernels, and stacks that share their outer parts."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

NONE: Final = -1
"""Stands for no row or no node."""


class ProfiledLine(NamedTuple):
    """A source line."""

    file: str
    line: int
    last_line: int
    """Equal to ``line``, or larger if the profiler only reports that it is between the two."""
    function: str


class Allocation(NamedTuple):
    """An allocation, or a free (a negative size)."""

    time_ns: int
    operation: int
    """Position of the innermost enclosing operation; NONE."""
    thread: int
    device: int
    address: int
    size_bytes: int
    total_bytes: int
    """Allocated on the device afterwards, from the allocator's own counter; UNKNOWN for a free outside of operations."""
    line: int
    """Node of line_chains; NONE."""


class Kernel(NamedTuple):
    """Work of the device: a kernel, a copy or a fill."""

    start_ns: int
    duration_ns: int
    operation: int
    """Position of the operation that launched it; NONE."""


class SharedStacks:
    """Stacks that share their outer parts: each is a node, with its key and the enclosing node."""

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
        """Return the keys from a node outwards, each once."""
        keys: dict[Any, None] = {}
        while node != NONE:
            keys[self.keys[node]] = None
            node = self.parents[node]
        return list(keys)
