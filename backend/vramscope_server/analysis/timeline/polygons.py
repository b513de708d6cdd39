"""Draws the largest allocations of a window as stacked polygons, and all smaller ones as bands on top, one for each series.

The stack is sorted by series, and by age within a series, as in the overview. If an allocation ends, all above it move down.
Such a step is drawn only if it is large enough to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.timeline.curve import AllocationCurve
from vramscope_server.analysis.timeline.grouping import Grouping, Series, series_of
from vramscope_server.analysis.timeline.overview import drawn_moments, held_by

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace


MOST_DRAWN: Final = 2000
"""Maximum number of polygons in a picture. A browser pans 2,000 at 60 frames a second, and 20,000 at 10."""
MOST_STEPS: Final = 5_000
"""Maximum number of steps in all polygons together, besides two for each polygon. Above it, the minimum height of a drawn step
is doubled."""
_VISIBLE: Final = 1 / 1000
"""Minimum height as a fraction of the picture: below it a polygon is thinner than a pixel."""


@dataclass(frozen=True, eq=False)
class DrawnAllocations:
    """The allocations of a window that are drawn one by one, from the bottom up."""

    first: int
    end: int
    series: Series
    rows: IntArray
    """Rows of trace.lives."""
    of_series: IntArray
    left_out: int
    """Number of other allocations in the window: those in the bands."""


@dataclass(frozen=True, eq=False)
class Picture:
    """Polygons of the drawn allocations, and the bands of all others."""

    drawn: DrawnAllocations
    polygon: IntArray
    """Position of each step's allocation among ``drawn.rows``, rising; the steps of one allocation are in event order."""
    event: IntArray
    """Event of each step. From this moment on the bottom of the allocation is at ``bottom_bytes``."""
    bottom_bytes: IntArray
    begin: IntArray
    """First moment of each drawn allocation within the window."""
    until: IntArray
    """Moment at which each drawn allocation ends (exclusive)."""
    moment: IntArray
    """Moments at which the bands are drawn: the highest one of each part of the window."""
    drawn_bytes: IntArray
    """Bytes of the drawn allocations at these moments."""
    band_bytes: IntArray
    """Bytes of all others at these moments, by series. Shape (series, moments)."""
    allocated: IntArray
    """Allocated bytes at these moments."""
    peak: int
    joined_cycles: int
    """Number of rises and falls if the bands are drawn at their highest moments only; 0 if all are drawn."""


def drawn_of(trace: Trace, curve: AllocationCurve, grouping: Grouping, first: int, end: int) -> DrawnAllocations:
    """Choose the window's largest allocations, by bytes times events in the window. Takes 10 ns for each row of trace.lives.

    Where the bands are drawn at the highest moments of their parts, an allocation that ends within a part would leave a gap. Then
    only those that last for a whole part are chosen.
    """
    lives = trace.lives
    inside = np.flatnonzero(
        (lives.alloc_event < end)
        & (lives.free_requested_event > max(first, -1))
        & (lives.free_requested_event > lives.alloc_event)
    )
    begin = np.maximum(lives.alloc_event[inside], first)
    lasts = np.minimum(lives.free_requested_event[inside], end) - begin
    moment, joined_cycles = drawn_moments(curve, first, end)
    long = lasts >= (end - first) / (len(moment) if joined_cycles else np.inf)
    kept, lasts = inside[long], lasts[long]
    if len(kept) > MOST_DRAWN:
        area = lives.size_bytes[kept].astype(np.float64) * lasts
        kept = kept[np.argpartition(-area, MOST_DRAWN)[:MOST_DRAWN]]
    peak = np.array([curve.peak(first, end)])
    series = series_of(grouping, held_by(curve, grouping.group, len(grouping), peak)[:, 0])
    of_series = series.of_group[grouping.group[kept]].astype(np.int64)
    order = np.lexsort((kept, lives.alloc_event[kept], of_series))
    return DrawnAllocations(first, end, series, kept[order], of_series[order], len(inside) - len(kept))


def picture_of(trace: Trace, curve: AllocationCurve, grouping: Grouping, drawn: DrawnAllocations) -> Picture:
    """Stack the drawn allocations. Each start or end takes about 5 ns for each allocation above it: at most 40 ms in total."""
    lives, rows = trace.lives, drawn.rows
    begin = np.maximum(lives.alloc_event[rows], drawn.first)
    until = np.minimum(lives.free_requested_event[rows], drawn.end)
    size = lives.size_bytes[rows]
    order = np.argsort(np.concatenate([begin, until]), kind="stable")
    height = int(curve.allocated[drawn.first + 1 : drawn.end + 1].max(initial=1))
    tolerance = height * _VISIBLE
    while True:
        room = MOST_STEPS + 2 * len(rows)
        polygon, event, bottom = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
        steps = _stack(begin, until, size, order, tolerance, polygon, event, bottom)
        if steps < room:
            break
        tolerance *= 2
    by_polygon = np.argsort(polygon[:steps], kind="stable")
    moment, joined_cycles = drawn_moments(curve, drawn.first, drawn.end)
    parts = len(drawn.series)  # one more than the series: the drawn allocations
    part = drawn.series.of_group.astype(np.int8)[grouping.group]
    part[rows] = parts
    held = held_by(curve, part, parts + 1, moment)
    return Picture(
        drawn,
        polygon[:steps][by_polygon],
        event[:steps][by_polygon],
        bottom[:steps][by_polygon],
        begin,
        until,
        moment,
        held[parts],
        held[:parts],
        curve.allocated[moment + 1],
        curve.peak(drawn.first, drawn.end),
        joined_cycles,
    )


def outlines(picture: Picture, size_bytes: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the corners of all polygons as (x, y, position of each polygon's first corner, and the end).

    Corners go from left to right along the bottom, and back along the top. ``size_bytes``: size of each drawn allocation.
    """
    starts = np.searchsorted(picture.polygon, np.arange(len(picture.drawn.rows) + 1))
    steps = np.diff(starts)
    corners = np.concatenate([[0], np.cumsum(4 * steps)])
    x, y = np.empty(corners[-1], np.int64), np.empty(corners[-1], np.int64)
    _corners(starts, corners, picture.event, picture.bottom_bytes, picture.until, size_bytes, x, y)
    return x, y, corners


@entry
def _corners(starts: Any, corners: Any, event: Any, bottom: Any, until: Any, size: Any, x: Any, y: Any) -> None:
    for one in range(len(until)):
        forth, back = corners[one], corners[one + 1] - 1
        for at in range(starts[one], starts[one + 1]):
            upto = event[at + 1] if at + 1 < starts[one + 1] else until[one]
            for side in (event[at], upto):
                x[forth], y[forth] = side, bottom[at]
                x[back], y[back] = side, bottom[at] + size[one]
                forth += 1
                back -= 1


@entry
def _stack(
    begin: Any, until: Any, size: Any, order: Any, tolerance: float, polygon: Any, event: Any, bottom: Any
) -> int:
    """Fill in the steps, and return their number. If there are more than fit, return the number that fits.

    ``order`` sorts the starts and ends of all allocations together by event.
    """
    count = len(size)
    there = np.zeros(count, np.bool_)
    at, shown = np.zeros(count, np.int64), np.zeros(count, np.int64)
    steps = 0
    place = 0
    while place < len(order):
        one = order[place] % count
        now = begin[one] if order[place] < count else until[one]
        lowest = count
        # First all starts and ends of one event, then the new positions.
        while place < len(order):
            one = order[place] % count
            born = order[place] < count
            if (begin[one] if born else until[one]) != now:
                break
            there[one] = born
            if born:
                shown[one] = -1
            lowest = min(lowest, one)
            place += 1
        height = np.int64(0)
        for below in range(lowest - 1, -1, -1):
            if there[below]:
                height = at[below] + size[below]
                break
        for above in range(lowest, count):
            if not there[above]:
                continue
            at[above] = height
            height += size[above]
            if shown[above] < 0 or abs(at[above] - shown[above]) > tolerance:
                if steps == len(polygon):
                    return steps
                polygon[steps], event[steps], bottom[steps] = above, now, at[above]
                shown[above] = at[above]
                steps += 1
    return steps
