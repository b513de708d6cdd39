"""Results with graphs that a scan took for those of an evaluation, until a backward pass shows whose they are.

Graphs without a backward pass prove an evaluation. But it may have ended, and results that are alive may be the first ones of a
training step. The next backward pass walks these, and not those of an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope.leaks.autograd.unwalked_outputs import numbers_below
from vramscope.leaks.holders.key import HolderKey

MOST_NODES: Final = 10_000
"""Maximum number of nodes of the backward pass that are visited, at 1 µs each, once for each such scan."""


class UnusedResults:
    """It keeps no node: a graph is known by the sequence number of its newest operation."""

    def __init__(self) -> None:
        self._waiting: Mapping[HolderKey, Sequence[int]] = {}

    def found(self, births: Mapping[HolderKey, Sequence[int]]) -> None:
        """Note what was reported. ``births``: numbers of the newest operations, by holder."""
        self._waiting = {**self._waiting, **births}

    def walked(self, roots: Any) -> list[HolderKey]:
        """A backward pass begins from these tensors. Returns the holders whose results it uses, or may use if it is too large."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, {}
        walked = numbers_below(roots, MOST_NODES)
        if len(walked) >= MOST_NODES:
            return list(waiting)
        return [holder for holder, births in waiting.items() if not walked.isdisjoint(births)]
