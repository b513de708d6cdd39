"""Keeps the records of ended steps until the sampler's thread takes them."""

from __future__ import annotations

from collections import deque
from typing import Final

from vramscope.steps.records import StepRecord

MOST: Final = 20_000
"""Records that wait at most; the oldest are dropped first."""


class FinishedSteps:
    """Written by the training thread, taken by the sampler's. No lock: a deque's own calls are whole."""

    def __init__(self) -> None:
        self._waiting: deque[StepRecord] = deque(maxlen=MOST)
        self.newest: StepRecord | None = None
        """Record of the last step that ended."""
        self.lost = 0
        """Number of records that were dropped because nobody took them."""

    def add(self, record: StepRecord) -> None:
        """Append the record of a step that has ended."""
        if len(self._waiting) == MOST:
            self.lost += 1
        self._waiting.append(record)
        self.newest = record

    def take(self) -> list[StepRecord]:
        """Records since the last call, oldest first."""
        steps = []
        while self._waiting:
            steps.append(self._waiting.popleft())
        return steps

    def untaken(self) -> list[StepRecord]:
        """Records that nobody has taken yet, oldest first; they stay. From any thread."""
        return list(self._waiting)
