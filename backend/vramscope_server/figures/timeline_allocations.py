"""Allocations of a window: the largest as polygons, the smaller ones as one band."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.timeline.axis_spans import AxisSpans
from vramscope_server.analysis.timeline.polygons import Picture, outlines
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, escaped
from vramscope_server.figures.timeline import WIDTH_PX, draw_ruler, label_of, mark_peak, new_drawing, top_of


def draw(picture: Picture, size_bytes: IntArray, ruler: AxisSpans, width_px: int = WIDTH_PX) -> go.Figure:
    """Draw polygons grouped by colour, with gaps between them. ``size_bytes``: size of each allocation."""
    highest = float(picture.allocated.max())
    unit = byte_unit(highest)
    drawn = picture.drawn
    drawing = new_drawing(drawn.first, drawn.end, unit, top_of(highest, 0))
    drawing.figure.update_layout(yaxis_showgrid=False)  # a line across polygons would look like a border of theirs
    x, y, corners = outlines(picture, size_bytes)
    for at in range(len(drawn.series)):
        here = np.flatnonzero(drawn.of_series == at)
        if len(here):
            _polygons(drawing, picture, at, here, x, y, corners, unit)
    if drawn.left_out:
        _band(drawing, picture, unit)
    drawing.figure.add_trace(
        go.Scatter(
            x=[],
            y=[],
            mode="lines",
            hoverinfo="skip",
            meta={"role": "chosen", "label": "chosen", "kind": "outline", "legend": False, "table": False},
        )
    )
    mark_peak(drawing, picture.peak, highest / unit.divisor, drawn.first, drawn.end)
    draw_ruler(drawing, ruler, drawn.first, drawn.end, width_px)
    return drawing.done(hovermode=False)


def _polygons(
    drawing: Drawing, picture: Picture, at: int, here: IntArray, x: IntArray, y: IntArray, corners: IntArray, unit: Unit
) -> None:
    series = picture.drawn.series
    low, high = int(corners[here[0]]), int(corners[here[-1] + 1])  # those of one series follow one another
    ends = corners[here + 1] - low
    key, name = series.keys[at], series.names[at]
    drawing.figure.add_trace(
        go.Scatter(
            x=np.insert(x[low:high], ends, 0).astype(np.int32),
            y=np.insert(y[low:high] / unit.divisor, ends, np.nan).astype(np.float32),
            mode="none",  # a border of each would be an element of each: the page draws the borders of all as one
            fill="toself",
            hoverinfo="skip",
            name=escaped(name),
            meta={
                "role": f"{key}:{name}" if key.startswith("series") else key,
                "colour": key,
                "label": label_of(series, at),
                "meaning": f"{name}: {amount(int(series.peak_bytes[at]))} at the highest moment in view",
                "kind": "polygon",
                "unit": unit.quantity,
                "divisor": unit.divisor,
                "table": False,
                "rows": picture.drawn.rows[here].tolist(),
                "ends": (ends + np.arange(len(ends))).tolist(),
            },
        )
    )


def _band(drawing: Drawing, picture: Picture, unit: Unit) -> None:
    """Draw the band between the drawn allocations and all allocated memory."""
    x = picture.moment.astype(np.float64)
    for held, kind, part in ((picture.drawn_bytes, "edge", "min"), (picture.allocated, "band", "max")):
        drawing.trace(
            x,
            held.astype(np.float64),
            role="smaller",
            label=f"{picture.drawn.left_out:,} smaller ones",
            unit=unit,
            kind=kind,
            part=part,
            line={"shape": "hv"},
            fill="tonexty" if kind == "band" else None,
            shown={"table": False},
        )
