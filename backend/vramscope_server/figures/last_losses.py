"""The loss of the last minute before an out-of-memory error."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import LOSSES
from vramscope_server.analysis.series.chart_data import LossWindow
from vramscope_server.figures.drawing import COUNT, Drawing
from vramscope_server.figures.loss import HOVER, mark
from vramscope_server.figures.loss_axis import loss_axis


def draw(loss: LossWindow | None, steps: list[int]) -> go.Figure:
    """Draw the loss over seconds, 0 at the error, as figures/last_minute.py does. ``steps``: step numbers."""
    drawing = Drawing("error")
    drawing.meta["kind"] = "static"
    loss_axis(drawing, *([loss.values.mean] if loss else []))
    if loss is None:
        drawing.say("loss: unknown")
    else:
        drawing.trace(
            loss.x_values,
            loss.values.mean,
            role="loss",
            label="loss",
            unit=COUNT,
            kind="line",
            meaning=LOSSES[loss.name],
            mode="lines+markers" if loss.rows < 100 else "lines",
            line={"width": 1.6},
            marker={"size": 4},
            customdata=np.array(steps),
            hovertemplate=f"{HOVER}, step %{{customdata}}<extra>loss</extra>",
        )
        drawing.say(f"loss: {LOSSES[loss.name]}")
        mark(drawing, loss)
    drawing.figure.update_xaxes(title={"text": "seconds before the error"}, unifiedhovertitle={"text": "%{x:.1f} s"})
    return drawing.done()
