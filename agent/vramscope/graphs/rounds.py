"""Rounds, in which the age of things is counted: optimizer steps; where nothing trains, batches of a loader or calls of a model."""

from __future__ import annotations

from typing import Final

LOOKS_AT: Final = frozenset((4, 8, 12, 16, 22, 30, 42, 60, 100, 200, 400, 1_000, 10_000, 100_000))
"""rounds after which there is a look whatever happens, also where looks are slow: without these a short run is not judged"""
LOOKS_AT_CALLS: Final = LOOKS_AT - {4, 12, 16, 30}
"""the same, where each call of a model is a round: as many as show growth within PATIENCE_WITH_CALLS of ``kinds.py``"""


class Rounds:
    """How many have ended, and what ends one."""

    def __init__(self) -> None:
        self.number = 0
        self.per = "step"
        """of wire.ROUNDS"""
        self._before = 0
        """rounds of another kind: an evaluation before the training"""

    def count(self, per: str) -> None:
        """From now on such a one ends a round."""
        if per != self.per:
            self.per, self._before = per, self.number

    def end(self) -> bool:
        """One is over; whether there is a look after it whatever happens."""
        self.number += 1
        return self.number - self._before in (LOOKS_AT_CALLS if self.per == "call" else LOOKS_AT)
