"""Results with graphs that a scan took for those of an evaluation, until a backward pass shows whose they are.

Graphs without a backward pass prove an evaluation. But it may have ended, and results that are alive may be the first ones of a
training step. One of the next backward passes walks these, and not those of an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope.leaks.autograd.live_graphs import NO_NUMBER
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
        numbers = _numbers_below(roots, min(min(births, default=0) for births in self._waiting.values()))
        used = [key for key, births in self._waiting.items() if numbers is None or not numbers.isdisjoint(births)]
        self._walks -= 1
        for key in list(self._waiting) if not self._walks else used:
            del self._waiting[key]
        return used


def _numbers_below(roots: Any, oldest: int) -> set[int] | None:
    """Sequence numbers, from ``oldest`` on, of the nodes that a backward pass walks; None if there are too many to visit."""
    import torch

    tensors = roots if isinstance(roots, (list, tuple)) else (roots,)
    with torch._C.DisableTorchFunction():  # no code of the user's tensor classes
        nodes = [node for tensor in tensors if (node := getattr(tensor, "grad_fn", None)) is not None]
    seen = set(nodes)
    numbers = {node._sequence_nr() for node in nodes}
    while nodes:
        for child, _ in nodes.pop().next_functions:
            if child is None or child in seen:
                continue
            seen.add(child)
            if len(seen) > MOST_NODES:
                return None
            number = child._sequence_nr()
            if oldest <= number < NO_NUMBER:  # what is older, or a parameter, leads to none of them
                numbers.add(number)
                nodes.append(child)
    return numbers
