"""Allocations of a window: the largest as polygons, the smaller ones as one band for each series."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.timeline.axis_spans import AxisSpans
from vramscope_server.analysis.timeline.polygons import Picture, outlines
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, escaped
from vramscope_server.figures.timeline import WIDTH_PX, draw_ruler, label_of, mark_peak, new_drawing, say_joined, top_of


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
        say_joined(drawing, picture.joined_cycles)
        for at in range(len(drawn.series)):
            _band(drawing, picture, at, unit)
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
    low, high = int(corners[here[0]]), int(corners[here[-1] + 1])  # those of one series follow one another
    ends = corners[here + 1] - low
    _shape(
        drawing,
        picture,
        at,
        np.insert(x[low:high], ends, 0),
        np.insert(y[low:high] / unit.divisor, ends, np.nan),
        unit,
        rows=picture.drawn.rows[here].tolist(),
        ends=(ends + np.arange(len(ends))).tolist(),
    )


def _band(drawing: Drawing, picture: Picture, at: int, unit: Unit) -> None:
    """Draw the smaller allocations of a series as one shape, above the drawn allocations and the bands of the series before it."""
    held = picture.band_bytes[at]
    if not held.any():
        return
    bottom = picture.drawn_bytes + picture.band_bytes[:at].sum(axis=0)
    until = np.append(picture.moment[1:], picture.drawn.end)
    x = np.column_stack([picture.moment, until]).ravel()
    low, high = np.repeat(bottom, 2), np.repeat(bottom + held, 2)
    _shape(
        drawing,
        picture,
        at,
        np.concatenate([x, x[::-1]]),
        np.concatenate([low, high[::-1]]) / unit.divisor,
        unit,
        band=True,
    )


def _shape(drawing: Drawing, picture: Picture, at: int, x: IntArray, y: FloatArray, unit: Unit, **meta: object) -> None:
    """Draw polygons in the colour of a series. The page draws their borders."""
    series = picture.drawn.series
    key, name = series.keys[at], series.names[at]
    drawing.figure.add_trace(
        go.Scatter(
            x=x.astype(np.int32),
            y=y.astype(np.float32),
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
                **meta,
            },
        )
    )
