"""Standalone HTML file of a recording: timeline, and flamegraph at the peak."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go
import plotly.io

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin-top:2rem}.muted{opacity:.7}"
)
_COLOURS: Final = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#997700", "#004488", "#ee99aa",
)  # fmt: skip
"""Colour-blind safe colours: Paul Tol's bright scheme, and three of his others."""
_FIXED: Final = {
    "reserved": "#888888", "out-of-memory": "#c0392b", "unknown": "#999999", "other": "#777777",
    "flame-own": "#cc6633", "flame-library": "#99aabb", "flame-module": "#6699aa", "flame-none": "#aaaaaa",
}  # fmt: skip


def report(title: str, facts: Sequence[str], timeline: go.Figure, flame: go.Figure, notes: Sequence[str]) -> str:
    """Return the HTML text, about 5 MB with the drawing library."""
    parts = [
        _drawn(timeline, 420, first=True),
        "<h2>What was alive at the highest moment</h2>",
        _drawn(flame, max(200, 24 * int((flame.layout.meta or {}).get("levels", 8)) + 60)),
        *(f"<p class=muted>{html.escape(note)}</p>" for note in notes),
    ]
    name = html.escape(title)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{name}</title><style>{_STYLE}</style><h1>{name}</h1><p>{html.escape(' · '.join(facts))}</p>{''.join(parts)}"
        "<p class=muted>made by vramscope</p></html>"
    )


def _drawn(figure: go.Figure, height: int, *, first: bool = False) -> str:
    for at, trace in enumerate(figure.data):
        meta = trace.meta or {}
        colour = _FIXED.get(str(meta.get("role")), _COLOURS[at % len(_COLOURS)])
        if trace.type == "bar":
            trace.update(marker_color=colour)
        elif meta.get("kind") == "area":
            trace.update(fillcolor=colour, line_color=colour, line_width=0)
        elif meta.get("kind") == "marker":
            trace.update(marker_color=colour)
        else:
            trace.update(line_color=colour)
        trace.update(showlegend=True)
    figure.update_layout(height=height, font={"color": "#888888"}, showlegend=True, legend={"orientation": "h"})
    options = {"displaylogo": False}
    drawn: str = plotly.io.to_html(figure, include_plotlyjs=first, full_html=False, config=options)
    return drawn
