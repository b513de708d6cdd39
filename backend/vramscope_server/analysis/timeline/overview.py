"""The overview: allocated bytes through a window, stacked by group.

Each point is the highest moment of its stretch, with what every series held at this very moment: so the top of the stack is
the allocator's allocated bytes, to the byte, and never lower than what it really reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.timeline.curve import AllocationCurve
from vramscope_server.analysis.timeline.grouping import Grouping, Series, series_of

POINTS: Final = 1000


@dataclass(frozen=True, eq=False)
class Overview:
    """Arrays over the chosen moments."""

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


def overview(curve: AllocationCurve, grouping: Grouping, first: int, end: int, points: int = POINTS) -> Overview:
    """The moments ``first`` to ``end`` - 1 at no more than ``points`` of them (and the two ends). 5 ns an event up to ``end``."""
    moment = curve.moments(first, end, points)
    peak = curve.peak(first, end)
    of_groups = held_by(curve, grouping.group, len(grouping), np.array([peak]))[:, 0]
    series = series_of(grouping, of_groups)
    held = held_by(curve, series.of_group[grouping.group], len(series), moment)
    return Overview(first, end, moment, series, held, curve.allocated[moment + 1], curve.reserved[moment + 1], peak)


def held_by(curve: AllocationCurve, group: Any, count: int, moments: IntArray) -> IntArray:
    """What each group of rows holds at some moments, which rise: shape (groups, moments)."""
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
