"""Exact peak of each step of several runs on one axis."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped, highest, known

NEEDS = {"steps": ["peak_allocated_bytes"]}

DASHES = ("solid", "dash", "dot", "dashdot")
COLOURS = 7
"""Number of colours of runs besides the baseline. More runs repeat them with another dash."""


def role_of(position: int) -> str:
    """Return the colour role of the run at a position. The baseline is at 0."""
    return "baseline" if position == 0 else f"run-{(position - 1) % COLOURS}"


def dash_of(position: int) -> str:
    return "solid" if position == 0 else DASHES[(position - 1) // COLOURS % len(DASHES)]


def draw(windows: list[RunWindow]) -> go.Figure:
    """Draw one line per run, the baseline (first) thick. Times start at 0 for each run."""
    drawing = Drawing(windows[0].x if windows else "step")
    unit = byte_unit(highest(*(window.steps.columns["peak_allocated_bytes"].max for window in windows)))
    drawing.y_axis(unit)
    for position, window in enumerate(windows):
        peak = window.steps.columns["peak_allocated_bytes"].max
        name = str(window.run["name"])
        if not known(peak):
            drawing.say(f"{name}: unknown step peaks")
            continue
        drawing.trace(
            window.steps.x_values,
            peak,
            role=role_of(position) if position < 1 + COLOURS else f"{role_of(position)}-{position}",
            label=f"{name} (baseline)" if position == 0 and len(windows) > 1 else name,
            unit=unit,
            kind="line",
            shown={"colour": role_of(position), "run": window.run["run_id"]},
            line={"width": 3 if position == 0 else 1.6, "dash": dash_of(position)},
            hovertemplate=f"%{{y:.{unit.decimals}f}} {unit.name}<extra>{escaped(name)}</extra>",
        )
    return drawing.done()
