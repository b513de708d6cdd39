"""Memory after each step, and its trend."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import STEPS
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.analysis.series.trend import MIN_STEPS, Trend
from vramscope_server.figures.drawing import COUNT, Drawing, Unit, byte_unit, highest, known

NEEDS = {"steps": ["after_step_bytes", "graphs_alive"]}


def draw(window: RunWindow) -> go.Figure:
    """Draw memory after each step, the fitted line with its interval, and the number of live graphs."""
    drawing = Drawing.over(window)
    steps = window.steps
    floor = steps.columns["after_step_bytes"]
    unit = byte_unit(highest(floor.max))
    # What matters is whether it rises: from zero, a leak of megabytes would be flat among gigabytes.
    drawing.y_axis(unit, rangemode="normal")
    if not steps.rows:
        drawing.no_rows("steps", "no finished step in this window")
    elif not drawing.line(
        steps,
        "after_step_bytes",
        role="floor",
        label="memory after each step",
        unit=unit,
        meaning=STEPS["after_step_bytes"].meaning,
        line={"width": 1.6},
    ):
        drawing.unknown("floor")
    else:
        _fitted(drawing, window.trend, unit, "step" if window.x == "step" else "second")
    _graphs(drawing, window)
    return drawing.done()


def _fitted(drawing: Drawing, fit: Trend | None, unit: Unit, per: str) -> None:
    if fit is None:
        drawing.say(f"fewer than {MIN_STEPS} steps: too few for a fit")
        return
    drawing.meta["settled"] = fit.first
    x = np.linspace(fit.first, fit.last, 32)
    middle = (fit.first + fit.last) / 2
    fan: FloatArray = fit.margin * np.abs(x - middle) + fit.spread_bytes / 2
    line = fit.at(x)
    role = "trend-growing" if fit.growing else "trend"
    words = f"{amount(fit.slope)} a {per}, ± {amount(fit.margin)}"
    shown = {"legend": False}
    drawing.trace(x, line - fan, role=role, label="fit", unit=unit, kind="edge", part="min", shown=shown)
    drawing.trace(
        x, line + fan, role=role, label="fit", unit=unit, kind="band", part="max", shown=shown, fill="tonexty"
    )
    drawing.trace(
        x,
        line,
        role=role,
        label="fit",
        unit=unit,
        kind="line",
        shown=shown,
        line={"width": 1.4, "dash": "dash"},
        meaning="median of the slopes between the lowest values of groups of steps (Theil-Sen)",
    )
    in_jumps = f"rises in {fit.jumps} jump{'' if fit.jumps == 1 else 's'}, level between them"
    level = f"level since {per} {fit.level_since or 0:,.0f}, risen before"
    not_growing = in_jumps if fit.rises_in_jumps else f"no detectable growth: {words}"
    not_growing = not_growing if fit.level_since is None else level
    slower = f"rises more and more slowly: {words} on average"
    drawing.say(f"fit: {words}" if fit.growing else slower if fit.slows else not_growing)


def _graphs(drawing: Drawing, window: RunWindow) -> None:
    alive = window.steps.columns["graphs_alive"].max
    if not window.steps.rows:
        return
    if not known(alive):
        drawing.unknown("graphs alive")
        return
    if highest(alive) == 0:
        drawing.say("no graphs alive after their step")
        return
    drawing.trace(
        window.steps.x_values,
        alive,
        role="graphs",
        label="graphs alive",
        unit=COUNT,
        kind="line",
        axis="y2",
        line={"shape": "hv", "width": 1.2, "dash": "dot"},
        meaning=STEPS["graphs_alive"].meaning,
        feed={"stream": "steps", "field": "graphs_alive"},
    )
    drawing.count_axis("graphs alive")
