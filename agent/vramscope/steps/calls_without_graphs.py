"""Counts forward passes that build no graph although gradients are enabled: all weights are frozen."""

from __future__ import annotations

from typing import Final

LEAST_IN_A_ROW: Final = 3
"""Passes without a graph that make an inference. A training calls its frozen models fewer times before the one that trains."""


class CallsWithoutGraphs:
    """Sees whether autograd recorded an operation between the begins of forward passes. 0.2 µs each."""

    def __init__(self) -> None:
        import torch

        self._sequence = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._at_last = -1
        self._in_a_row = 0

    def infers(self) -> bool:
        """A forward pass begins with gradients enabled. True if the last few ones and all that followed them built no graph."""
        if self._sequence is None:
            return False
        now = self._sequence()
        self._in_a_row = self._in_a_row + 1 if now == self._at_last else 0
        self._at_last = now
        return self._in_a_row >= LEAST_IN_A_ROW
