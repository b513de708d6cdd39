"""Losses of several runs on one axis."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import COUNT, Drawing, escaped, known
from vramscope_server.figures.loss import HOVER, mark
from vramscope_server.figures.loss_axis import loss_axis
from vramscope_server.figures.peaks_over_steps import line_of, role_of, shown_of


def draw(windows: list[RunWindow]) -> go.Figure:
    """Draw one line per run, the baseline (first) thick; the mean of thinned rows. Times start at 0 for each run."""
    drawing = Drawing(windows[0].x if windows else "step")
    loss_axis(drawing, *(window.loss.values.mean for window in windows if window.loss is not None))
    some = any(window.loss is not None for window in windows)
    for position, window in enumerate(windows):
        name, loss = str(window.run["name"]), window.loss
        if loss is None or not loss.rows:
            if some:
                drawing.say(f"{name}: unknown loss")
            continue
        if known(loss.values.mean):
            drawing.trace(
                loss.x_values,
                loss.values.mean,
                role=role_of(position),
                label=f"{name} (baseline)" if position == 0 and len(windows) > 1 else name,
                unit=COUNT,
                kind="line",
                shown=shown_of(position, window.run["run_id"]) | {"smooths": True},
                line=line_of(position),
                hovertemplate=f"{HOVER}<extra>{escaped(name)}</extra>",
            )
        mark(drawing, loss, name)
    sources = {window.loss.name for window in windows if window.loss is not None}
    if len(sources) > 1:
        drawing.say("the losses have different sources: see each run")
    if not some:
        drawing.say("no known losses")
    return drawing.done()
