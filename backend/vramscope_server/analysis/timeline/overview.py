"""Overview of a window: allocated bytes over time, stacked by group.

Each point is the highest moment of its part of the window, with the bytes of every series at that moment. So the top of the
stack is exact, and no peak is lost.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.timeline.curve import BEFORE, AllocationCurve
from vramscope_server.analysis.timeline.grouping import Grouping, Series, series_of

POINTS: Final = 1000
MOST_CYCLES: Final = 60
"""Maximum number of rises and falls in a window that are drawn one by one. More would be too narrow to distinguish."""
LEAST_POINTS: Final = 40


@dataclass(frozen=True, eq=False)
class Overview:
    """Values at the chosen moments of a window."""

    first: int
    end: int
    moment: IntArray
    series: Series
    held_bytes: IntArray
    """Bytes of each series at each moment; shape (series, moments)."""
    allocated: IntArray
    reserved: IntArray
    peak: int
    """Highest moment of the window, one of the chosen moments."""
    joined_cycles: int = 0
    """Number of rises and falls if only their highest moments are drawn; 0 if all are drawn."""


def overview(curve: AllocationCurve, grouping: Grouping, first: int, end: int, points: int = POINTS) -> Overview:
    """Return the overview of the window ``first, end`` with at most ``points`` moments, plus its two ends.

    Takes 5 ns for each event before ``end``.
    """
    moment, joined_cycles = drawn_moments(curve, first, end, points)
    peak = curve.peak(first, end)
    of_groups = held_by(curve, grouping.group, len(grouping), np.array([peak]))[:, 0]
    series = series_of(grouping, of_groups)
    held = held_by(curve, series.of_group[grouping.group], len(series), moment)
    return Overview(
        first,
        end,
        moment,
        series,
        held,
        curve.allocated[moment + 1],
        curve.reserved[moment + 1],
        peak,
        joined_cycles,
    )


@functools.cache
def load_machine_code() -> None:
    """Draw two allocations, so that the next overview need not wait half a second for its machine code."""
    one, rows = np.ones(2, np.int64), np.arange(2, dtype=np.int32)
    bytes_after = np.arange(1, 4, dtype=np.int64)
    curve = AllocationCurve(one.cumsum() - 1, rows, one, one[:0], one[:0], bytes_after, bytes_after)
    overview(curve, Grouping("site", ["", ""], rows, one.cumsum() - 1), BEFORE, curve.end)


def drawn_moments(curve: AllocationCurve, first: int, end: int, points: int = POINTS) -> tuple[IntArray, int]:
    """Return the moments at which a window is drawn, and the number of rises and falls if they are too many to be drawn each."""
    moment = curve.moments(first, end, points)
    cycles = cycles_of(curve.allocated[moment + 1])
    if cycles <= MOST_CYCLES:
        return moment, 0
    return curve.moments(first, end, max(LEAST_POINTS, cycles // 2)), cycles  # each part has a whole rise and fall


def cycles_of(allocated: IntArray) -> int:
    """Return how often a curve rises above 60 % of its usual range and then falls below 40 %.

    The usual range excludes the lowest and highest 5 %, because the first step of a training begins much lower.
    """
    low, high = np.percentile(allocated, (5, 95))
    if high <= low:
        return 0
    position = (allocated - low) / (high - low)
    marked = np.where(position > 0.6, 1, np.where(position < 0.4, -1, 0))
    marked = marked[marked != 0]
    return int((np.diff(marked) < 0).sum())


def held_by(curve: AllocationCurve, group: Any, count: int, moments: IntArray) -> IntArray:
    """Return the bytes of each group at these moments, which must be sorted. Shape (groups, moments)."""
    out = np.zeros((count, len(moments)), np.int64)
    _walk(curve.event, curve.row, curve.change_bytes, curve.there, curve.there_bytes, group, moments, out)
    return out


@entry
def _walk(event: Any, row: Any, change: Any, there: Any, there_bytes: Any, group: Any, moments: Any, out: Any) -> None:
    held = np.zeros(len(out), np.int64)
    for at in range(len(there)):
        held[group[there[at]]] += there_bytes[at]
    at = 0
    for column in range(len(moments)):
        while at < len(event) and event[at] <= moments[column]:
            held[group[row[at]]] += change[at]
            at += 1
        out[:, column] = held
