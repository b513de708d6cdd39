"""Time and peak memory of each phase of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow, SeriesColumn
from vramscope_server.figures.drawing import Drawing, Unit, known, run_unit

NEEDS = {"steps": [f"{phase}_{what}" for phase in PHASES for what in ("ns", "peak_allocated_bytes")]}

LONG: Final = 2.0
"""Factor on the median from which a step is not typical."""
ORDER = ("data", "forward", "backward", "optimizer", "eval", "other")
MOST_STRAIGHT: Final = 5
"""Phases whose names fit side by side on a phone. More are rotated."""


def draw(window: RunWindow) -> go.Figure:
    """Draw two bars per phase over the window: mean time in a typical step, and peak allocated.

    The bars of time add up to about the median step time. A few long steps (the first one, one with an evaluation) would
    otherwise make them add up to twice as much.
    """
    drawing = Drawing.over(window)
    drawing.meta["x"] = "phase"
    drawing.meta["kind"] = "static"
    columns = window.steps.columns
    typical = _typical_steps(columns)
    times = {phase: _mean(columns[f"{phase}_ns"].mean[typical], int(typical.sum())) * 1e-9 for phase in ORDER}
    peaks = {phase: _highest(columns[f"{phase}_peak_allocated_bytes"].max) for phase in ORDER}
    seen = [phase for phase in ORDER if times[phase] > 0 or peaks[phase] > 0]
    if not seen:
        if window.steps.rows:
            drawing.unknown("phases")
        else:
            drawing.say("no finished step in this window")
        return drawing.done()
    seconds = _time_unit(max((times[phase] for phase in seen if np.isfinite(times[phase])), default=0.0))
    unit = run_unit(window.run)
    sides: list[tuple[dict[str, float], Unit, str, str]] = [(times, seconds, "y", "in a typical step")]
    if any(np.isfinite(peaks[phase]) for phase in seen):
        sides.append((peaks, unit, "y2", "peak allocated"))
    else:
        drawing.unknown("peaks by phase")
    for values, side_unit, axis, what in sides:
        _side(drawing, seen, values, side_unit, axis, what)
    drawing.y_axis(seconds, domain=[0.57, 1] if len(sides) > 1 else [0, 1], nticks=4)
    drawing.figure.update_layout(
        xaxis={
            "title": {"text": None},
            "unifiedhovertitle": None,
            "type": "category",
            "anchor": "y2" if len(sides) > 1 else "y",
            "ticks": "",
            **({"tickangle": 0} if len(seen) <= MOST_STRAIGHT else {}),
        },
        yaxis_title={"text": f"time ({seconds.name})"},
    )
    if len(sides) > 1:
        drawing.y_axis(unit, "yaxis2", domain=[0, 0.43], nticks=4)
        drawing.figure.update_layout(yaxis2_title={"text": f"peak ({unit.name})"})
    return drawing.done(bargap=0.35, barmode="overlay", hovermode="closest")


def _typical_steps(columns: Mapping[str, SeriesColumn]) -> npt.NDArray[np.bool_]:
    """True for steps whose phases were read, and that took at most LONG times the median."""
    of_phases = np.array([columns[f"{phase}_ns"].mean for phase in ORDER])
    read: npt.NDArray[np.bool_] = np.isfinite(of_phases).any(axis=0)
    if not read.any():
        return read
    together = np.nansum(of_phases, axis=0)
    typical: npt.NDArray[np.bool_] = read & (together <= LONG * np.median(together[read]))
    return typical


def _side(drawing: Drawing, seen: list[str], values: dict[str, float], unit: Unit, axis: str, what: str) -> None:
    for phase in seen:
        if not np.isfinite(values[phase]):
            continue
        drawing.trace(
            np.array([phase]),
            np.array([values[phase]]),
            role=f"phase-{phase}",
            label=phase,
            unit=unit,
            kind="bar",
            axis=axis,
            shown={"legend": False},  # the x axis names them
            text=[f"{values[phase] / unit.divisor:.{unit.decimals}f}"],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"%{{y:.{unit.decimals}f}} {unit.name} {what}<extra>{phase}</extra>",
        )


def _mean(values: FloatArray, steps: int) -> float:
    return float(np.nansum(values)) / steps if known(values) and steps else float("nan")


def _highest(values: FloatArray) -> float:
    return float(np.nanmax(values)) if known(values) else float("nan")


def _time_unit(top_seconds: float) -> Unit:
    if top_seconds >= 1:
        return Unit("s", "seconds", 1.0, 2)
    return Unit("ms", "seconds", 1e-3, 1 if top_seconds >= 0.01 else 2)
