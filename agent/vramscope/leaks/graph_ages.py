"""Ages of autograd graphs: the ends of the last iterations, and how many graphs of earlier ones are alive."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

from vramscope.leaks.autograd.live_graphs import Sentinels


class GraphAges:
    """One per session."""

    def __init__(self) -> None:
        self.boundaries: deque[int] = deque(maxlen=512)
        """Autograd's sequence numbers at the ends of the last iterations, rising."""
        self.kept_iterations = 0
        """Consecutive iterations after which more graphs were alive, or a graph reached back further."""
        self.old_graphs = 0
        """Live graphs of earlier iterations."""
        self._sentinels = Sentinels()

    @property
    def last_boundary(self) -> int:
        """The newest of the boundaries; 0 before the first."""
        return self.boundaries[-1] if self.boundaries else 0

    def most_operations(self, iterations: int) -> int:
        """Most sequence numbers that one of the newest iterations took."""
        newest = list(self.boundaries)[-iterations:]
        return max((after - before for before, after in pairwise(newest)), default=0)

    def backward_begins(self, root: Any, iteration: int) -> None:
        self._sentinels.place(root, iteration)

    def end_iteration(self, iteration: int, sequence_number: int) -> None:
        """``iteration``: the number of those that have ended, with this one."""
        self.boundaries.append(sequence_number)
        old = self._sentinels.end_iteration(iteration - 1)
        is_kept = old > self.old_graphs or self._sentinels.reach_steps > 1
        self.kept_iterations = self.kept_iterations + 1 if is_kept else 0
        self.old_graphs = old

    def older_than(self, iteration: int) -> int:
        return self._sentinels.older_than(iteration)

    def forget(self, iterations: int) -> None:
        """Drop the newest boundaries: they were micro-steps."""
        for _ in range(min(iterations, len(self.boundaries))):
            self.boundaries.pop()
