"""Coarse curve of a trace, from its events alone: the first picture of a snapshot, while lifetimes are still computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from vramscope.protocol.window import STATES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.trace import reserved_after
from vramscope_server.analysis.trace.types import ALLOC, FREE_REQUESTED

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

MOST_POINTS: Final = 300
_ALLOCATED: Final = STATES.index("active_allocated")


@dataclass(frozen=True, eq=False)
class CoarseCurve:
    """Highest values of stretches of equal length."""

    device: int
    events: int
    event: list[int]
    """First event of each stretch."""
    requested_bytes: list[int] | None
    """Memory that the program requested, without rounding. None if events are missing."""
    reserved_bytes: list[int] | None
    """Reserved memory. None if events are missing."""


def coarse_curve(trace: Trace, points: int = MOST_POINTS) -> CoarseCurve | None:
    """Some 10 ns an event. None for a file without a history."""
    events = trace.events
    count = len(events)
    if not count:
        return None
    first = np.unique(np.linspace(0, count, points + 1).astype(np.int64)[:-1])
    there = trace.end.blocks
    at_end = int(there.requested_bytes[there.state == _ALLOCATED].sum())
    # The layout at the end is known. That at the start is not, so the curve is computed backwards.
    change = np.cumsum(
        np.where(events.action == ALLOC, events.size_bytes, 0)
        - np.where(events.action == FREE_REQUESTED, events.size_bytes, 0)
    )
    requested = at_end - int(change[-1]) + change
    return CoarseCurve(
        trace.device, count, first.tolist(), _highest(requested, first), _highest(reserved_after(trace)[1:], first)
    )


def _highest(values: IntArray, first: IntArray) -> list[int] | None:
    if int(values.min()) < 0:
        return None
    highest: list[int] = np.maximum.reduceat(values, first).tolist()
    return highest
