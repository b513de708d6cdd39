"""Numbers that the training logs beside its loss: one panel each, on a common x axis."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import COUNT, Drawing, escaped, known
from vramscope_server.figures.loss import HOVER


def draw(window: RunWindow) -> go.Figure:
    """Draw each metric, in a long window its mean and range."""
    drawing = Drawing.over(window)
    shown = [one for one in window.metrics if known(one.values.max)]
    if not shown:
        drawing.say("no logged metrics in this window")
        return drawing.done()
    height = 1 / len(shown)
    for i, metric in enumerate(shown):
        axis = "" if i == 0 else str(i + 1)
        common: dict[str, Any] = {
            "role": f"metric-{metric.name}",
            "label": metric.name,
            "unit": COUNT,
            "axis": f"y{axis}",
            "meaning": f"{metric.name}, logged by the training",
            "feed": {"stream": "scalars", "field": metric.name, "signed": True},
            "shown": {"colour": f"series-{i}"},
        }
        x = metric.x_values
        if metric.envelope:
            drawing.trace(x, metric.values.min, kind="edge", part="min", **common)
            drawing.trace(x, metric.values.max, kind="band", part="max", fill="tonexty", **common)
        part = "mean" if metric.envelope else "value"
        hover = f"{HOVER}<extra>{escaped(metric.name)}</extra>"
        line = {"width": 1 if metric.envelope else 1.6}
        drawing.trace(x, metric.values.mean, kind="line", part=part, line=line, hovertemplate=hover, **common)
        top = 1 - i * height
        room = 0.05 if i < len(shown) - 1 else 0
        drawing.y_axis(COUNT, f"yaxis{axis}", domain=[top - height + room, top], nticks=3, rangemode="normal")
        if metric.odd:
            drawing.say(f"{metric.name}: {metric.odd:,} values that are not finite are left out")
    drawing.figure.update_layout(xaxis_anchor="y" if len(shown) == 1 else f"y{len(shown)}")
    if window.metrics_left_out:
        drawing.say(f"{window.metrics_left_out:,} more metrics are in the API (stream scalars)")
    return drawing.done()
