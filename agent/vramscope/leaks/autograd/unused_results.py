"""Results with graphs that a scan took for those of an evaluation, until a backward pass shows whose they are.

Graphs without a backward pass prove an evaluation. But it may have ended, and results that are alive may be the first ones of a
training step. One of the next backward passes walks these, and not those of an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope.leaks.autograd.unwalked_outputs import numbers_below
from vramscope.leaks.holders.key import HolderKey

MOST_NODES: Final = 4_000
"""Maximum number of nodes of a backward pass that are visited, at 1 µs each."""
MOST_WALKS: Final = 4
"""Number of backward passes that are searched: a loop with several models has several in each step."""


class UnusedResults:
    """It keeps no node: a graph is known by the sequence number of its newest operation."""

    def __init__(self) -> None:
        self._waiting: dict[HolderKey, Sequence[int]] = {}
        self._walks = 0
        """Backward passes that may still be searched."""

    def found(self, births: Mapping[HolderKey, Sequence[int]]) -> None:
        """Note what was reported. ``births``: numbers of the newest operations, by holder."""
        if births:
            self._waiting |= births
            self._walks = MOST_WALKS

    def walked(self, roots: Any) -> list[HolderKey]:
        """A backward pass begins from these tensors. Returns the holders whose results it uses, or may use if it is too large."""
        if not self._waiting:
            return []
        oldest = min(min(births, default=0) for births in self._waiting.values())
        numbers, are_all = numbers_below(roots, MOST_NODES, oldest)
        used = [key for key, births in self._waiting.items() if not are_all or not numbers.isdisjoint(births)]
        self._walks -= 1
        for key in list(self._waiting) if not self._walks else used:
            del self._waiting[key]
        return used
