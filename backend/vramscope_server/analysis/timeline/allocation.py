"""Finds an allocation by its position in a picture, and returns everything that the trace contains about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np

from vramscope_server.analysis.timeline.curve import EventMoment, alive, describe_event
from vramscope_server.analysis.timeline.grouping import Grouping, Series
from vramscope_server.analysis.timeline.polygons import DrawnAllocations
from vramscope_server.analysis.timeline.source_lines import SourceLines, frame_of
from vramscope_server.analysis.trace.segment_map import StackFrame, stack_lines
from vramscope_server.analysis.trace.trace import address_as_json

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace


class PickedAllocation(NamedTuple):
    """The allocation at a position, if one is drawn there."""

    row: int | None
    """Row of trace.lives; None in the bands of small allocations, and outside of the stack."""
    series: int | None
    """None outside of the stack."""
    allocated_bytes: int
    in_band: bool
    band_count: int
    """Number of allocations at this moment that are not drawn one by one: of the series of this band, or of all bands."""
    band_bytes: int


def allocation_at(
    trace: Trace, grouping: Grouping, series: Series, moment: int, at_bytes: int, drawn: DrawnAllocations | None = None
) -> PickedAllocation:
    """Return the allocation at a height of the stack at a moment. Takes 10 ns for each row of trace.lives.

    drawn   the drawn allocations of a picture of polygons; None for a picture of areas

    Both pictures stack the allocations by series, and by age within a series.
    """
    rows = alive(trace, moment)
    size = trace.lives.size_bytes
    total = int(size[rows].sum())
    band = rows[:0]
    if drawn is not None:
        is_drawn = np.isin(rows, drawn.rows)
        band, rows = rows[~is_drawn], rows[is_drawn]
    of_series = series.of_group[grouping.group[rows]]
    order = np.lexsort((rows, trace.lives.alloc_event[rows], of_series))
    tops = np.cumsum(size[rows[order]])
    place = int(np.searchsorted(tops, at_bytes, side="right"))
    band_bytes = int(size[band].sum())
    if at_bytes < 0 or at_bytes >= total:
        return PickedAllocation(None, None, total, False, len(band), band_bytes)
    if place == len(order):
        of_band = series.of_group[grouping.group[band]]
        heights = np.bincount(of_band, size[band], len(series)).astype(np.int64)
        at = int(np.searchsorted(total - band_bytes + np.cumsum(heights), at_bytes, side="right"))
        return PickedAllocation(None, at, total, True, int(np.count_nonzero(of_band == at)), int(heights[at]))
    row = int(rows[order[place]])
    return PickedAllocation(row, int(of_series[order[place]]), total, False, len(band), band_bytes)


class AllocationFacts(TypedDict):
    """Facts about one allocation; None, or an empty stack, is unknown. docs/http.md describes the fields."""

    allocation: int
    """Row of trace.lives."""
    requested_bytes: int | None
    size_bytes: int
    category: str
    born: EventMoment | None
    freed: EventMoment | None
    usable_event: int | None
    events: int | None
    seconds: float | None
    site: str | None
    stack: list[StackFrame]
    freed_by: list[StackFrame]
    frees_told: bool
    forward_stack: list[StackFrame]
    ranges: list[str]
    user_metadata: str | None
    compile_context: str | None
    address: int | str | None
    private_pool: list[int] | None
    stream: int


def life(trace: Trace, sites: SourceLines, row: int, category: str) -> AllocationFacts:
    """Return the facts about one allocation, a row of trace.lives. None, or an empty stack, is unknown."""
    lives, count = trace.lives, len(trace.events)
    made, let_go, usable = (
        int(column[row]) for column in (lives.alloc_event, lives.free_requested_event, lives.completed_event)
    )
    born = describe_event(trace, made) if made >= 0 else None
    freed = describe_event(trace, let_go) if 0 <= let_go < count else None
    lasted = None
    if born and freed and born["seconds"] is not None and freed["seconds"] is not None:
        lasted = freed["seconds"] - born["seconds"]
    freed_by: list[StackFrame] = []
    if freed is not None and sites.frees_told:
        freed_by = stack_lines(trace, int(trace.events.stack[let_go]))
    pool, stack = int(lives.pool[row]), int(sites.stack[row])
    requested = int(lives.requested_bytes[row])
    forward = trace.labels.get("forward_stack")
    return {
        "allocation": row,
        "requested_bytes": requested if requested >= 0 else None,
        "size_bytes": int(lives.size_bytes[row]),
        "category": category,
        "born": born,
        "freed": freed,
        "usable_event": usable if usable < count else None,
        "events": (min(let_go, count) - made) if made >= 0 else None,
        "seconds": lasted,
        "site": str(frame_of(trace, int(sites.frame[stack]))) if stack >= 0 else None,
        "stack": stack_lines(trace, stack),
        "freed_by": freed_by,
        "frees_told": sites.frees_told,
        "forward_stack": stack_lines(trace, int(forward[made])) if forward is not None and made >= 0 else [],
        "ranges": [trace.words[trace.annotations.name[at]] for at in trace.annotations.around(made)]
        if made >= 0
        else [],
        "user_metadata": trace.label("user_metadata", made),
        "compile_context": trace.label("compile_context", made),
        "address": address_as_json(lives.address[row]),
        "private_pool": list(trace.pools[pool]) if 0 < pool < len(trace.pools) else None,
        "stream": int(lives.stream[row]),
    }
