"""Allocated bytes over the peak's step, as recorded or with techniques.

A curve has two parts: constant bytes (weights, gradients, state), and bytes that scale with the batch (input, activations,
temporaries of forward and backward). A technique changes one or both parts after each event. Changes are added, so techniques
combine in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules.batch import scaling_bytes
from vramscope_server.analysis.array_types import IntArray


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes after each event of the peak's step."""

    constant_bytes: IntArray
    scaled_bytes: IntArray
    """Bytes for all rows of a recorded batch."""
    parts: int = 1
    """Number of micro-batches into which the recorded batch is divided."""

    @cached_property
    def peak_bytes(self) -> int:
        return int((self.constant_bytes + self.scaled_bytes / self.parts).max())

    def with_change(self, change: CurveChange) -> MemoryCurve:
        return replace(
            self,
            constant_bytes=self.constant_bytes + change.constant_bytes,
            scaled_bytes=self.scaled_bytes + change.scaled_bytes,
        )

    def rows_that_fit(self, rows: int, usable_bytes: int) -> int:
        """Rows per micro-batch that fit; 0 if none. ``rows`` is the size of the recorded batch."""
        scales = self.scaled_bytes > 0
        if not scales.any() or (self.constant_bytes[~scales] > usable_bytes).any():
            return 0
        return max(
            0, int(rows * float(((usable_bytes - self.constant_bytes[scales]) / self.scaled_bytes[scales]).min()))
        )


@dataclass(frozen=True, eq=False)
class CurveChange:
    """Change of both parts by a technique, after each event of the peak's step."""

    constant_bytes: IntArray | int = 0
    scaled_bytes: IntArray | int = 0
    of: str = ""
    """Part of the model that changes, as text; "" for the whole model."""


def recorded_curve(facts: StepFacts) -> MemoryCurve:
    """Curve of the peak's step as recorded."""
    scaled = scaling_bytes(facts)
    return MemoryCurve(in_step(facts, facts.allocated - scaled), in_step(facts, scaled))


def in_step(facts: StepFacts, changes: IntArray) -> IntArray:
    """Part of an array over all events (element 0: before the first) that belongs to the peak's step."""
    first, last = facts.span
    return changes[first + 1 : last + 2]
