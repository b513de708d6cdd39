"""What is allocated over the peak's step, as it was recorded or as a technique would have it.

Two courses that add up: what stays whatever the batch (weights, gradients, state), and what goes with its rows (input,
activations, temporaries of forward and backward). A technique changes one or both, after each event; changes add up, so that
techniques go together in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules.batch import scaling_bytes

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes after each event of the peak's step."""

    stays_bytes: Whole
    goes_bytes: Whole
    """of all rows of a recorded batch"""
    parts: int = 1
    """into how many the recorded batch is divided: so much less goes with the rows that are there at a time"""

    @cached_property
    def peak_bytes(self) -> int:
        return int((self.stays_bytes + self.goes_bytes / self.parts).max())

    def with_change(self, change: Change) -> MemoryCurve:
        return replace(
            self, stays_bytes=self.stays_bytes + change.stays_bytes, goes_bytes=self.goes_bytes + change.goes_bytes
        )

    def rows_that_fit(self, rows: int, usable_bytes: int) -> int:
        """How many at a time, where ``rows`` are those of the recorded batch; 0: not one."""
        some = self.goes_bytes > 0
        if not some.any() or (self.stays_bytes[~some] > usable_bytes).any():
            return 0
        return max(0, int(rows * float(((usable_bytes - self.stays_bytes[some]) / self.goes_bytes[some]).min())))


@dataclass(frozen=True, eq=False)
class Change:
    """What a technique makes of both, after each event of the peak's step."""

    stays_bytes: Whole | int = 0
    goes_bytes: Whole | int = 0
    of: str = ""
    """what it is done to, in words, where that is a part of the model"""


def recorded_curve(facts: StepFacts) -> MemoryCurve:
    goes = scaling_bytes(facts)
    return MemoryCurve(in_step(facts, facts.allocated - goes), in_step(facts, goes))


def in_step(facts: StepFacts, changes: Whole) -> Whole:
    """Of what is told after each event of the trace (element 0: before the first), that of the peak's step."""
    first, last = facts.span
    return changes[first + 1 : last + 2]
