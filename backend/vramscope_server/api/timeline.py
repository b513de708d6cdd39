"""Timeline of a recording: allocations, flamegraph, comparison of two points."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from vramscope_server.analysis.ownership.allocation_owners import name_of, ownership_of
from vramscope_server.analysis.timeline import flamegraph as flames
from vramscope_server.analysis.timeline.allocation import allocation_at, life
from vramscope_server.analysis.timeline.axis_spans import AxisSpans, ruler
from vramscope_server.analysis.timeline.curve import (
    AllocationCurve,
    allocation_curve,
    describe_event,
    shown_first,
    stacks_from,
)
from vramscope_server.analysis.timeline.diff import between
from vramscope_server.analysis.timeline.grouping import By, Grouping, Series, grouping_of, series_of
from vramscope_server.analysis.timeline.overview import POINTS, held_by, overview
from vramscope_server.analysis.timeline.polygons import DrawnAllocations, drawn_of, picture_of
from vramscope_server.analysis.timeline.source_lines import SourceLines, sites_of
from vramscope_server.answers.timeline import (
    AllocationsAnswer,
    AtAnswer,
    BetweenAnswer,
    FlameAnswer,
    Life,
    MomentWithBytes,
    RulerFacts,
    TimelineAnswer,
)
from vramscope_server.api.problems import InvalidParameter
from vramscope_server.api.recording_request import End, First, checked_events, open_recording, readable
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import OpenRecording

router = APIRouter(tags=["recordings"])

Colouring = Annotated[By, Query(description="Grouping of the allocations.")]
Moment = Annotated[
    int | None, Query(ge=-1, description="Number of the event; -1 is before the first. By default the peak.")
]

Width = Annotated[int, Query(ge=100, le=8000, description="Width of the picture in pixels, for the length of names.")]


@router.get(
    "/recordings/{recording}/timeline",
    summary="Timeline of a recording",
    responses=answers_with(TimelineAnswer),
)
def get_timeline(
    request: Request,
    recording: str,
    by: Colouring = "category",
    first: First = None,
    end: End = None,
    points: Annotated[
        int,
        Query(ge=10, le=POINTS, description="Maximum number of points; each is the highest of its part of the window."),
    ] = POINTS,
    width: Width = 1200,
) -> Response:
    """Allocated memory over the events, stacked. The top of the stack is exact."""
    from vramscope_server.figures import timeline as figure

    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace, curve = opened.trace, curve_in(opened)
        first, end = checked_events(curve.end, first, end)
        made = overview(curve, grouping_in(opened, by), first, end, points)
        above = ruler(trace, first, end)
        drawn = figure.draw(
            made,
            above,
            out_of_memory=opened.moments.out_of_memory_events,
            capacity_bytes=trace.device_total_bytes,
            width_px=width,
        )
        shown: TimelineAnswer = {
            "figure": drawn.to_dict(),
            "by": by,
            "from": first,
            "to": end,
            "events": curve.end,
            "peak": _with_bytes(opened, made.peak),
            "look_at": describe_event(trace, shown_first_in(opened)),
            "series": figure.series_rows(made.series),
            "joined": made.series.joined,
            "ruler": _ruler(above),
            "outline": {
                "event": made.moment.tolist(),
                "allocated_bytes": made.allocated.tolist(),
                "reserved_bytes": made.reserved.tolist(),
            },
        }
        return answer(shown)


@router.get(
    "/recordings/{recording}/allocations",
    summary="Largest allocations of a window",
    responses=answers_with(AllocationsAnswer),
)
def get_allocations(
    request: Request,
    recording: str,
    by: Colouring = "category",
    first: First = None,
    end: End = None,
    width: Width = 1200,
) -> Response:
    """The largest 2000 by bytes times events, one by one; all others as one band for each series."""
    from vramscope_server.figures import timeline, timeline_allocations

    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace, curve = opened.trace, curve_in(opened)
        first, end = checked_events(curve.end, first, end)
        grouping = grouping_in(opened, by)
        drawn = drawn_of(trace, curve, grouping, first, end)
        picture = picture_of(trace, curve, grouping, drawn)
        above = ruler(trace, first, end)
        made = timeline_allocations.draw(picture, trace.lives.size_bytes[drawn.rows], above, width)
        shown: AllocationsAnswer = {
            "figure": made.to_dict(),
            "by": by,
            "from": first,
            "to": end,
            "events": curve.end,
            "peak": _with_bytes(opened, picture.peak),
            "series": timeline.series_rows(drawn.series),
            "joined": drawn.series.joined,
            "ruler": _ruler(above),
            "drawn": len(drawn.rows),
            "left_out": drawn.left_out,
            "left_out_peak_bytes": int((picture.allocated - picture.drawn_bytes).max(initial=0)),
        }
        return answer(shown)


@router.get(
    "/recordings/{recording}/at", summary="Allocation at a point of the picture", responses=answers_with(AtAnswer)
)
def get_at(
    request: Request,
    recording: str,
    event: Moment = None,
    height: Annotated[
        int | None,
        Query(alias="bytes", ge=0, description="Height in the stack; without it only the event is described."),
    ] = None,
    by: Colouring = "category",
    first: First = None,
    end: End = None,
    detail: Annotated[Literal["areas", "allocations"], Query(description="Picture that the point is in.")] = "areas",
) -> Response:
    """``from``, ``to``, ``by`` and ``detail`` are those of the picture."""
    stored, opened = open_recording(request, recording)
    with readable(stored):
        trace, curve, grouping = opened.trace, curve_in(opened), grouping_in(opened, by)
        moment = require_moment(curve, event, "event")
        fields: AtAnswer = {
            "moment": describe_event(trace, moment),
            "allocated_bytes": int(curve.allocated[moment + 1]),
            "reserved_bytes": int(curve.reserved[moment + 1]),
            "series": None,
            "allocation": None,
            "in_band": False,
            "band": None,
        }
        if height is None:
            return answer(fields)
        first, end = checked_events(curve.end, first, end)
        drawn: DrawnAllocations | None = None
        if detail == "allocations":
            drawn = drawn_of(trace, curve, grouping, first, end)
            series = drawn.series
        else:
            series = _series(curve, grouping, first, end)
        found = allocation_at(trace, grouping, series, moment, height, drawn)
        fields["in_band"] = found.in_band
        fields["band"] = {"allocations": found.band_count, "bytes": found.band_bytes}
        if found.series is not None:
            fields["series"] = {"name": series.names[found.series], "colour": series.keys[found.series]}
        if found.row is not None:
            fields["allocation"] = _life(opened, found.row)
        return answer(fields)


@router.get("/recordings/{recording}/life", summary="One allocation", responses=answers_with(Life))
def get_life(
    request: Request,
    recording: str,
    allocation: Annotated[int, Query(ge=0, description="Number of the allocation, from `/at` or `/between`.")],
) -> Response:
    """Sizes, allocation, free, stack, category and place."""
    stored, opened = open_recording(request, recording)
    with readable(stored):
        last = len(opened.trace.lives) - 1
        if allocation > last:
            raise InvalidParameter(
                f"The recording has {last + 1} allocations.",
                field="allocation",
                seen=allocation,
                expected=f"0 to {last}" if last >= 0 else "none: it has no allocations",
            )
        return answer(_life(opened, allocation))


@router.get(
    "/recordings/{recording}/flame",
    summary="Flamegraph",
    responses=answers_with(FlameAnswer),
)
def get_flame(
    request: Request,
    recording: str,
    event: Annotated[
        int | None, Query(ge=-1, description="Number of the event; by default `look_at` of the timeline.")
    ] = None,
    by: Annotated[flames.FlameBy, Query(description="Lines of the stacks, or modules.")] = "stack",
    focus: Annotated[
        str, Query(max_length=60, description="`customdata` of a box in an earlier figure; empty is everything.")
    ] = "",
    libraries: Annotated[bool, Query(description="Whether to show frames of libraries.")] = False,
    width: Width = 1200,
) -> Response:
    """Memory that is alive after an event. Boxes below 0.1 % of the focus are left out."""
    from vramscope_server.figures import flame as figure

    stored, opened = open_recording(request, recording)
    with readable(stored):
        moment = shown_first_in(opened) if event is None else require_moment(curve_in(opened), event, "event")
        lost = False
        try:
            made = flames.flame(opened.trace, sites_in(opened), moment, by, focus=focus, libraries=libraries)
        except flames.UnknownFocus as unknown:
            if not focus.partition(":")[0].lstrip("-").isdigit():
                raise InvalidParameter(
                    f"{unknown}.", field="focus", seen=focus, expected="customdata of a box, or empty"
                ) from None
            lost = True  # it is not alive there: everything is shown, and ``focus_lost`` is set
            made = flames.flame(opened.trace, sites_in(opened), moment, by, libraries=libraries)
        shown: FlameAnswer = {
            "figure": figure.draw(made, width).to_dict(),
            "moment": describe_event(opened.trace, moment),
            **figure.as_answer(made),
            "focus_lost": lost,
            "stacks_from": stacks_from_in(opened),
        }
        return answer(shown)


@router.get(
    "/recordings/{recording}/between",
    summary="Compare two points of a recording",
    responses=answers_with(BetweenAnswer),
)
def get_between(
    request: Request,
    recording: str,
    a: Annotated[int, Query(ge=-1, description="Number of the event; -1 is before the first.")],
    b: Annotated[int, Query(ge=-1, description="Number of the other event.")],
    by: Colouring = "site",
) -> Response:
    """Allocated at ``b`` minus allocated at ``a`` is appeared minus gone."""
    stored, opened = open_recording(request, recording)
    with readable(stored):
        curve = curve_in(opened)
        a, b = require_moment(curve, a, "a"), require_moment(curve, b, "b")
        compared: BetweenAnswer = between(opened.trace, grouping_in(opened, by), a, b)
        return answer(compared)


# ---- computed once for a recording ----


def curve_in(opened: OpenRecording) -> AllocationCurve:
    """Allocated and reserved memory after each event."""
    return opened.once(("curve",), lambda: allocation_curve(opened.trace))


def grouping_in(opened: OpenRecording, by: By) -> Grouping:
    """Allocations in groups."""
    return opened.once(("grouping", by), lambda: grouping_of(opened.trace, curve_in(opened), by))


def sites_in(opened: OpenRecording) -> SourceLines:
    """Source lines of the stacks."""
    return opened.once(("sites",), lambda: sites_of(opened.trace))


def stacks_from_in(opened: OpenRecording) -> int | None:
    """First event with a stack."""
    return opened.once(("stacks from",), lambda: stacks_from(opened.trace))


def shown_first_in(opened: OpenRecording) -> int:
    """Event of interest."""
    return shown_first(curve_in(opened), stacks_from_in(opened))


# ---- parameters ----


def require_moment(curve: AllocationCurve, event: int | None, field: str) -> int:
    """Event of a request; the peak by default. Raises InvalidParameter beyond the last."""
    if event is None:
        return curve.peak(-1, curve.end)
    if event >= curve.end:
        raise InvalidParameter(
            f"The recording has {curve.end} events.", field=field, seen=event, expected=f"-1 to {curve.end - 1}"
        )
    return event


def _with_bytes(opened: OpenRecording, event: int) -> MomentWithBytes:
    allocated_bytes = int(curve_in(opened).allocated[event + 1])
    return {**describe_event(opened.trace, event), "allocated_bytes": allocated_bytes}


def _ruler(made: AxisSpans) -> RulerFacts:
    return {
        "left_out": {str(lane): spans for lane, spans in made.left_out.items()},
        "depth": {lane: {"told": shown, "there": there} for lane, (shown, there) in made.depth.items()},
    }


def _series(curve: AllocationCurve, grouping: Grouping, first: int, end: int) -> Series:
    peak = np.array([curve.peak(first, end)])
    return series_of(grouping, held_by(curve, grouping.group, len(grouping), peak)[:, 0])


def _life(opened: OpenRecording, row: int) -> Life:
    categories = grouping_in(opened, "category")
    lifetime = life(opened.trace, sites_in(opened), row, categories.names[int(categories.group[row])])
    owner = name_of(opened.trace, opened.once(("owned",), lambda: ownership_of(opened.trace)), row)
    return {**lifetime, "owner": owner, "stacks_from": stacks_from_in(opened)}
