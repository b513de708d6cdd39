"""Time and peak memory of each phase of a step."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.series.window import FloatArray, RunWindow
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, known

NEEDS = {"steps": [f"{phase}_{what}" for phase in PHASES for what in ("ns", "peak_allocated_bytes")]}

ORDER = ("data", "forward", "backward", "optimizer", "eval", "other")


def draw(window: RunWindow) -> go.Figure:
    """Draw two bars per phase over the window: mean time per step, and peak allocated."""
    drawing = Drawing.over(window)
    drawing.meta["x"] = "phase"
    drawing.meta["kind"] = "static"
    columns = window.steps.columns
    # Mean over all steps whose phases were read, so that the bars add up to a step without us: what happens in few of them (an
    # evaluation, the setting-up before the first forward) counts with its share.
    read = np.any([np.isfinite(columns[f"{phase}_ns"].mean) for phase in ORDER], axis=0)
    times = {phase: _mean(columns[f"{phase}_ns"].mean, int(read.sum())) * 1e-9 for phase in ORDER}
    peaks = {phase: _highest(columns[f"{phase}_peak_allocated_bytes"].max) for phase in ORDER}
    seen = [phase for phase in ORDER if times[phase] > 0 or peaks[phase] > 0]
    if not seen:
        if window.steps.rows:
            drawing.unknown("phases")
        else:
            drawing.say("no finished step in this window")
        return drawing.done()
    seconds = _time_unit(max((times[phase] for phase in seen if np.isfinite(times[phase])), default=0.0))
    unit = byte_unit(max((peaks[phase] for phase in seen if np.isfinite(peaks[phase])), default=0.0))
    sides: list[tuple[dict[str, float], Unit, str, str]] = [(times, seconds, "y", "time per step")]
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
        },
        yaxis_title={"text": f"time ({seconds.name})"},
    )
    if len(sides) > 1:
        drawing.y_axis(unit, "yaxis2", domain=[0, 0.43], nticks=4)
        drawing.figure.update_layout(yaxis2_title={"text": f"peak ({unit.name})"})
    return drawing.done(bargap=0.35, barmode="overlay", hovermode="closest")


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
