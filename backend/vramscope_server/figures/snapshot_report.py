"""Standalone HTML file of recordings: of each the timeline, and a flamegraph at its peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.timeline import flamegraph
from vramscope_server.analysis.timeline.axis_spans import ruler
from vramscope_server.analysis.timeline.curve import AllocationCurve
from vramscope_server.analysis.timeline.grouping import Grouping
from vramscope_server.analysis.timeline.overview import overview
from vramscope_server.analysis.timeline.source_lines import SourceLines
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.figures import flame, timeline
from vramscope_server.figures.html_file import drawn, escaped, html_file, section

POINTS = 1000
"""Points of the timeline at most."""


@dataclass(frozen=True, slots=True)
class ReportedWindow:
    """Window of a recording, and what is drawn from it."""

    trace: Trace
    curve: AllocationCurve
    grouping: Grouping
    sites: SourceLines
    out_of_memory_events: Sequence[int]
    first: int
    """First event."""
    end: int
    """End, not included."""


def parts_of(window: ReportedWindow) -> list[str]:
    """Facts, timeline, flamegraph at the highest moment, and notes, as HTML."""
    trace, low, high = window.trace, window.first, window.end
    first, end = (low, high) if high > low else (-1, 0)
    made = overview(window.curve, window.grouping, first, end, POINTS)
    fire = flame.draw(flamegraph.flame(trace, window.sites, made.peak, "stack", focus="", libraries=False))
    facts = [
        f"GPU {trace.device}",
        f"events {low:,} to {high:,} of {len(trace.events):,}",
        f"peak allocated {amount(int(window.curve.allocated[made.peak + 1]))}, at event {made.peak:,}",
        f"allocator settings: {trace.parsed_settings[0].text or 'default'}",
    ]
    levels = int((fire.layout.meta or {}).get("levels", 8))
    course = timeline.draw(made, ruler(trace, first, end), out_of_memory=window.out_of_memory_events)
    return [
        f"<p>{escaped(' · '.join(facts))}</p>",
        section("Allocated memory, event by event", drawn(course, 420)),
        section("Alive at the peak", drawn(fire, max(200, 24 * levels + 60))),
        *(f"<p class=muted>{escaped(note)}</p>" for note in trace.notes),
    ]


def report(title: str, parts: Iterable[str]) -> str:
    """Return the HTML text, about 2 MB with the drawing library."""
    return html_file(title, parts)
