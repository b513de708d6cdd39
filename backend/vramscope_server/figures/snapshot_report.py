"""Standalone HTML file of a recording: timeline, and flamegraph at the peak."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from vramscope_server.figures.html_file import drawn, escaped, html_file, section


def report(title: str, facts: Sequence[str], timeline: go.Figure, flame: go.Figure, notes: Sequence[str]) -> str:
    """Return the HTML text, about 2 MB with the drawing library."""
    levels = int((flame.layout.meta or {}).get("levels", 8))
    return html_file(
        title,
        [
            f"<p>{escaped(' · '.join(facts))}</p>",
            drawn(timeline, 420),
            section("What was alive at the highest moment", drawn(flame, max(200, 24 * levels + 60))),
            *(f"<p class=muted>{escaped(note)}</p>" for note in notes),
        ],
    )
