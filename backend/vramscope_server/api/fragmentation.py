"""Fragmentation of a recording: events of interest, parts of reserved memory, segment map, blocks, size classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from vramscope_server.analysis.timeline.block_categories import categories_of_blocks
from vramscope_server.analysis.trace import segment_map, size_classes
from vramscope_server.analysis.trace.address_lookup import address_index
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import Layout
from vramscope_server.answers.recordings import (
    Block,
    FailedRequest,
    RecordedMap,
    RecordingMoments,
    Reserved,
    SegmentMap,
    SizesAnswer,
    StripAnswer,
)
from vramscope_server.api.recording_request import End, First, checked_events, open_recording, readable, require_event
from vramscope_server.api.recordings import recording_row
from vramscope_server.api.requested_range import Points
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.timeline import grouping_in
from vramscope_server.recording_cache import OpenRecording

router = APIRouter(tags=["recordings"])

Event = Annotated[
    int | None,
    Query(ge=-1, description="Number of the event, from 0; -1 is the start. By default the peak."),
]
Low = Annotated[int | None, Query(alias="from", ge=0, description="Offset in bytes, all segments end to end.")]
High = Annotated[int | None, Query(alias="to", ge=1, description="End, not included.")]
Lines = Annotated[int, Query(ge=1, le=256, description="Number of lines.")]
CellColumns = Annotated[int, Query(ge=16, le=2048, description="Number of cells in a line.")]
Offset = Annotated[int, Query(ge=0, description="Offset in bytes, all segments end to end.")]
SMALLEST_VIEW_BYTES = 512
OUTLINE_POINTS = 300


@router.get(
    "/recordings/{recording}/moments",
    summary="Open a recording",
    responses=answers_with(RecordingMoments),
)
def get_moments(request: Request, recording: str) -> Response:
    """Facts of a recording and its events of interest."""
    stored, opened = open_recording(request, recording)
    with readable(stored):
        moments, trace = opened.moments, opened.trace
        opened_row: RecordingMoments = {
            **recording_row(stored),
            "device": trace.device,
            "device_name": trace.device_name,
            "device_total_bytes": trace.device_total_bytes,
            "device_free_bytes": trace.device_free_bytes,
            "limit_bytes": trace.limit_bytes,
            "torch": trace.torch,
            "backend": trace.backend,
            "settings": trace.parsed_settings[0].text,
            "reason": trace.reason,
            "first_step": trace.first_step,
            "last_step": trace.last_step,
            "events": len(trace.events),
            "lost_events": trace.lost_events,
            "peak_event": moments.peak_event,
            "growth_event": moments.growth_event,
            "peak_reserved_bytes": moments.peak_reserved_bytes,
            "out_of_memory_events": moments.out_of_memory_events,
            "steps": [{"step": step, "event": event} for step, event in moments.steps],
            "notes": trace.notes,
        }
        return answer(opened_row)


@router.get(
    "/recordings/{recording}/strip",
    summary="Reserved memory over the events",
    responses=answers_with(StripAnswer),
)
def get_strip(request: Request, recording: str, first: First = None, end: End = None, points: Points = 800) -> Response:
    """Requested, rounding, usable and unusable memory add up to reserved memory."""
    from vramscope_server.analysis.fragmentation.breakdown import Breakdown, breakdown_of
    from vramscope_server.figures import reserved_parts as figure

    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace = opened.trace
        first, end = checked_events(len(trace.events), first, end)
        whole = opened.once(("strip",), lambda: breakdown_of(trace, OUTLINE_POINTS, parts=opened.parts))
        made = breakdown_of(trace, points, first=first, end=end, parts=opened.parts)
        drawn = figure.draw(made, opened.moments.steps, capacity_bytes=trace.device_total_bytes)

    def parts_at(of: Breakdown, at: int) -> Reserved:
        requested, rounding, usable, unusable = (
            int(column[at]) for column in (of.requested, of.rounding, of.usable, of.unusable)
        )
        return {
            "event": int(of.event[at]),
            "reserved_bytes": requested + rounding + usable + unusable,
            "requested_bytes": requested,
            "rounding_bytes": rounding,
            "usable_bytes": usable,
            "unusable_bytes": unusable,
        }

    def failed_at(at: int) -> FailedRequest:
        return {**parts_at(whole, at), "asked_bytes": int(trace.events.size_bytes[whole.event[at]])}

    strip: StripAnswer = {
        "figure": drawn.to_dict(),
        "from": first,
        "to": end,
        "events": len(trace.events),
        "highest": {**parts_at(made, made.peak), "step": int(made.step[made.peak])},
        "peak": parts_at(whole, whole.peak),
        "out_of_memory": [failed_at(at) for at in whole.ooms],
        "misfits": made.misfits,
        "outline": {
            "event": whole.event.tolist(),
            "in_use_bytes": whole.in_use.tolist(),
            "reserved_bytes": whole.reserved.tolist(),
        },
    }
    return answer(strip)


@router.get("/recordings/{recording}/map", summary="Segment map", responses=answers_with(RecordedMap))
def get_map(
    request: Request,
    recording: str,
    event: Event = None,
    low: Low = None,
    high: High = None,
    lines: Lines = 48,
    columns: CellColumns = 1024,
) -> Response:
    """All segments end to end, folded into lines of cells. By default the event is that of the highest reserved memory."""
    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace = opened.trace
        event = require_event(opened, event)
        step = int(trace.events.step[max(event, 0)]) if len(trace.events) else None
        row = opened.row(event)
        drawn = drawn_map(trace, row, low, high, lines, columns, lambda: categories_in(opened, row.layout, event))
        recorded: RecordedMap = {"event": event, "step": step, **drawn}
        return answer(recorded)


def categories_in(opened: OpenRecording, layout: Layout, event: int) -> list[str] | None:
    """Categories of the blocks of a layout after an event; None if no category is known."""
    index = opened.once(("addresses",), lambda: address_index(opened.trace))
    return categories_of_blocks(opened.trace, grouping_in(opened, "category"), layout, event, index)


def drawn_map(
    trace: Trace,
    row: segment_map.LinearLayout,
    low: int | None,
    high: int | None,
    lines: int,
    columns: int,
    categories: Callable[[], Sequence[str] | None],
) -> SegmentMap:
    """A part of the map with its numbers; without a figure if nothing is reserved.

    ``categories`` returns the category of each block. It is called only if each block is drawn.
    """
    from vramscope_server.figures import segment_map as figure

    size = row.size_bytes
    low = min(low or 0, max(size - SMALLEST_VIEW_BYTES, 0))
    high = min(size, max(high if high is not None else size, low + SMALLEST_VIEW_BYTES))
    blocks = row.layout.blocks
    drawn, exact = figure.draw(trace, row, low, high, lines, columns, categories) if size else (None, True)
    return {
        "figure": None if drawn is None else drawn.to_dict(),
        "exact": exact,
        "from": low,
        "to": high,
        "reserved_bytes": size,
        "segments": len(row.layout.segments),
        "blocks": len(blocks),
        "allocated_bytes": int(blocks.size_bytes[blocks.state == segment_map.ALLOCATED].sum()),
        "pending_bytes": int(blocks.size_bytes[blocks.state == segment_map.PENDING].sum()),
        "free_bytes": int(blocks.size_bytes[blocks.state == segment_map.INACTIVE].sum()),
        "free_pieces": int((blocks.state == segment_map.INACTIVE).sum()),
        "largest_free_bytes": int(blocks.size_bytes[blocks.state == segment_map.INACTIVE].max(initial=0)),
    }


@router.get(
    "/recordings/{recording}/block",
    summary="Block at an offset of the segment map",
    responses=answers_with(Block | None),
)
def get_block(
    request: Request,
    recording: str,
    offset: Offset,
    event: Event = None,
) -> Response:
    """Null beyond the end."""
    stored, opened = open_recording(request, recording)
    with readable(stored):
        row = opened.row(require_event(opened, event))
        at = segment_map.block_at(row, offset)
        block: Block | None = None if at is None else segment_map.describe(opened.trace, row, at)
        return answer(block)


@router.get(
    "/recordings/{recording}/sizes",
    summary="Size classes",
    responses=answers_with(SizesAnswer),
)
def get_sizes(request: Request, recording: str, event: Event = None) -> Response:
    """Requests of the recording and free blocks after an event, by powers of two and by pool."""
    from vramscope_server.figures import size_classes as figure

    stored, opened = open_recording(request, recording)
    with readable(stored):
        event = require_event(opened, event)
        asked = opened.once(("requests",), lambda: size_classes.requests(opened.trace))
        drawn = figure.draw(asked, size_classes.free_blocks(opened.row(event).layout))
        return answer(SizesAnswer(figure=drawn.to_dict(), event=event))
