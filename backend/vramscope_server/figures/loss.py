"""Loss of the steps, and its first NaN or infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import LOSSES
from vramscope_server.analysis.number_format import count
from vramscope_server.analysis.series.chart_data import LossWindow, RunWindow
from vramscope_server.figures.drawing import COUNT, Drawing, escaped, highest
from vramscope_server.figures.loss_axis import loss_axis

HOVER = "%{y:.4g}"


def draw(window: RunWindow) -> go.Figure:
    """Draw the loss, in a long window its mean and range, and a mark at the first NaN or infinity."""
    drawing = Drawing.over(window)
    loss = window.loss
    loss_axis(drawing, *([loss.values.min, loss.values.max] if loss else []))
    if loss is None:
        drawing.say("loss: unknown (no scalar loss seen or logged)")
        return drawing.done()
    for part in loss.damaged:
        drawing.say(
            f"{part['rows']} rows (steps {part['first_step']} to {part['last_step']}) are damaged and not shown"
        )
    if not loss.rows:
        drawing.say("no loss in this window")
        return drawing.done()
    x, feed = loss.x_values, {"stream": "scalars", "field": loss.name, "signed": True}
    common: dict[str, Any] = {
        "role": "loss",
        "label": "loss",
        "unit": COUNT,
        "meaning": LOSSES[loss.name],
        "feed": feed,
    }
    if loss.envelope:
        drawing.trace(x, loss.values.min, kind="edge", part="min", **common)
        drawing.trace(x, loss.values.max, kind="band", part="max", fill="tonexty", **common)
    drawing.trace(
        x,
        loss.values.mean,
        kind="line",
        part="mean" if loss.envelope else "value",
        line={"width": 1 if loss.envelope else 1.6},
        hovertemplate=f"{HOVER}<extra>loss</extra>",
        **common,
    )
    drawing.say(f"loss: {LOSSES[loss.name]}")
    mark(drawing, loss)
    return drawing.done()


def mark(drawing: Drawing, loss: LossWindow, name: str = "") -> None:
    """Draw a cross at the first NaN or infinite loss, at the height of the last finite value."""
    if loss.not_finite is None:
        return
    at, step, value = loss.not_finite
    finite = np.isfinite(loss.values.mean)
    before = loss.values.mean[finite & (loss.x_values <= at)]
    height = before[-1] if before.size else highest(loss.values.mean)
    word = "NaN" if math.isnan(value) else "infinite"
    many = "" if loss.odd == 1 else f", {count(loss.odd)} times in this window"
    drawing.say(f"{name}{': ' if name else ''}first {word} in step {count(step)}{many}")
    drawing.trace(
        np.array([at]),
        np.array([height]),
        role="loss-lost",
        label="not finite",
        unit=COUNT,
        kind="marker",
        mode="markers",
        marker={"symbol": "x", "size": 11},
        shown={"legend": False},
        hovertemplate=f"{word} from here<extra>{escaped(name or 'loss')}</extra>",
    )
