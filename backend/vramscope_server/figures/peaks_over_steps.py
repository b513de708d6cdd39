"""Exact peak of each step of several runs on one axis."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped, highest, known
from vramscope_server.figures.peak_bounds import at_least, say_bounds

NEEDS = {"steps": ["peak_allocated_bytes"]}

COLOURS = 7
"""Number of colours of runs besides the baseline. Further runs are grey, and are named on hover."""


def role_of(position: int) -> str:
    """Return the role of the run at a position. The baseline is at 0."""
    return "baseline" if position == 0 else f"run-{position - 1}"


def colour_of(position: int) -> str:
    """Return the role whose colour the run at a position has."""
    return role_of(position) if position <= COLOURS else "unknown"


def line_of(position: int) -> dict[str, float]:
    """Return the line of the run at a position. The baseline's is thick."""
    return {"width": 3 if position == 0 else 1.6 if position <= COLOURS else 1}


def shown_of(position: int, run: str) -> dict[str, object]:
    """Return what the page needs of the run at a position: colour, identifier, and whether it has a line in the legend."""
    return {"colour": colour_of(position), "run": run} | ({} if position <= COLOURS else {"legend": False})


def draw(windows: list[RunWindow]) -> go.Figure:
    """Draw one line per run, the baseline (first) thick. Times start at 0 for each run."""
    drawing = Drawing(windows[0].x if windows else "step")
    unit = byte_unit(highest(*(window.steps.columns["peak_allocated_bytes"].max for window in windows)))
    drawing.y_axis(unit)
    drawn = []
    for position, window in enumerate(windows):
        peak = window.steps.columns["peak_allocated_bytes"].max
        name = str(window.run["name"])
        if not known(peak):
            drawing.say(f"{name}: unknown step peaks")
            continue
        drawn.append(window)
        drawing.trace(
            window.steps.x_values,
            peak,
            role=role_of(position),
            label=f"{name} (baseline)" if position == 0 and len(windows) > 1 else name,
            unit=unit,
            kind="line",
            shown=shown_of(position, window.run["run_id"]),
            line=line_of(position),
            hovertemplate=f"{at_least(window)}%{{y:.{unit.decimals}f}} {unit.name}<extra>{escaped(name)}</extra>",
        )
    say_bounds(drawing, drawn)
    if len(windows) > 1 + COLOURS:
        more = len(windows) - 1 - COLOURS
        drawing.say(f"{more} further {'run is' if more == 1 else 'runs are'} grey; point at a line for its name")
    return drawing.done()
