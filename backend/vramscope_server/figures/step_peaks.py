"""Exact peak of each step, its phase, and marks at lower bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import PHASES, STEPS, phase_name
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow, StreamWindow
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, highest, known

NEEDS = {"steps": ["peak_allocated_bytes", "peak_reserved_bytes", "peak_phase", "foreign_reset", "first_step"]}

MOST_BARS = 300
"""Maximum number of bars. Each is a DOM node; more make an update slower than a frame."""

RESETS = {
    1: ("reset", "other", "circle-open", "counters reset, exact",
        "other code reset the peak counters through PyTorch's functions; the peak is exact"),
    2: ("lower-bound", "capacity", "triangle-up", "counters reset: lower bound",
        "other code reset the peak counters outside PyTorch's functions; the peak may have been higher"),
}  # fmt: skip
"""Code of ``foreign_reset`` -> role, role of the colour, symbol, label and meaning."""


def draw(window: RunWindow) -> go.Figure:
    """Draw bars of peak allocated, coloured by the phase of the peak, and a line of peak reserved."""
    drawing = Drawing.over(window)
    steps = window.steps
    allocated, reserved = (steps.columns[name].max for name in NEEDS["steps"][:2])
    phase = steps.columns["peak_phase"].mean
    unit = byte_unit(highest(allocated, reserved))
    drawing.y_axis(unit)
    grouped = known(steps.columns["first_step"].mean)
    bars = not steps.envelope and steps.rows <= MOST_BARS and not grouped
    # (a group is as wide as it is: from the end of the row before to its own)
    shape: dict[str, Any] = {"line": {"shape": "vh", "width": 1.6}} if grouped and not steps.envelope else {}
    if not steps.rows:
        drawing.no_rows("steps", "no finished step in this window")
    elif not known(allocated):
        drawing.unknown("peak allocated")
    elif bars:
        _bars(drawing, steps.x_values, allocated, phase, unit)
        if not known(phase):
            drawing.say("phase of the peak: unknown")
    else:
        drawing.line(
            steps,
            "peak_allocated_bytes",
            role="allocated",
            label="peak allocated",
            unit=unit,
            meaning=STEPS["peak_allocated_bytes"].meaning,
            **shape,
        )
    if known(reserved):
        drawing.trace(
            steps.x_values,
            reserved,
            role="reserved",
            label="peak reserved",
            unit=unit,
            kind="line",
            line={"shape": "hvh" if bars else "vh" if shape else "linear", "width": 1.6},
            meaning=STEPS["peak_reserved_bytes"].meaning,
            feed={"stream": "steps", "field": "peak_reserved_bytes"},
        )
    _resets(drawing, steps, allocated, unit)
    if drawing.figure.data:
        drawing.capacity(window.run.get("capacity_bytes"), unit)
    return drawing.done(bargap=0.12, barmode="overlay")


def _resets(drawing: Drawing, steps: StreamWindow, allocated: FloatArray, unit: Unit) -> None:
    """Mark each step (or span of steps) in which other code reset the peak counters."""
    resets = steps.columns["foreign_reset"].max
    for code, (role, colour, symbol, label, meaning) in RESETS.items():
        chosen = (resets == code) & np.isfinite(allocated)
        if chosen.any():
            drawing.trace(
                steps.x_values[chosen],
                allocated[chosen],
                role=role,
                label=label,
                unit=unit,
                kind="marker",
                mode="markers",
                marker={"symbol": symbol, "size": 9},
                meaning=meaning,
                shown={"colour": colour},
                feed={
                    "stream": "steps",
                    "field": "peak_allocated_bytes",
                    "where": {"field": "foreign_reset", "equals": code},
                },
            )


def _bars(drawing: Drawing, x: FloatArray, allocated: FloatArray, phase: FloatArray, unit: Unit) -> None:
    codes = np.where(np.isfinite(phase), phase, -1).astype(int)
    newer = sorted(set(codes[codes >= len(PHASES)].tolist()))
    for code in (*range(len(PHASES)), *newer, -1):
        chosen = codes == code
        # A phase without a bar yet has no trace; should it come, the next fetch of the window brings it.
        if not chosen.any():
            continue
        name = phase_name(code) if code >= 0 else "unknown phase"
        drawing.trace(
            x[chosen],
            allocated[chosen],
            role=f"phase-{PHASES[code] if 0 <= code < len(PHASES) else code if code >= 0 else 'unknown'}",
            shown={"colour": "phase-unknown"} if code >= len(PHASES) else None,
            label=f"peak in {name}",
            unit=unit,
            kind="bar",
            width=0.9,  # each phase has its own trace: Plotly would take the width from the gaps between its steps
            meaning=f"steps with peak allocated in {name}",
            feed={"stream": "steps", "field": "peak_allocated_bytes", "where": {"field": "peak_phase", "equals": code}},
        )
