"""Allocated and reserved memory over time."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES, STEPS
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, known, samples_of

NEEDS = {
    "samples": ["allocated_bytes", "reserved_bytes", "device_used_bytes"],
    "steps": ["peak_allocated_bytes", "peak_reserved_bytes"],
}


def draw(window: RunWindow) -> go.Figure:
    """Draw allocated, reserved and device memory with their range, and the exact peaks of steps as points."""
    drawing = Drawing.over(window)
    samples, steps = samples_of(window), window.steps
    unit = byte_unit(
        highest(
            *(samples.columns[name].max for name in NEEDS["samples"]),
            *(steps.columns[name].max for name in NEEDS["steps"]),
        )
    )
    drawing.y_axis(unit)
    shown = {"device_used_bytes": "device in use", "reserved_bytes": "reserved", "allocated_bytes": "allocated"}
    missing = []
    for name, label in shown.items():
        role = name.removesuffix("_bytes").replace("_", "-")
        options = {"line": {"width": 1.2, "dash": "dot"}} if name == "device_used_bytes" else {"line": {"width": 1.6}}
        if not drawing.line(samples, name, role=role, label=label, unit=unit, meaning=SAMPLES[name].meaning, **options):
            missing.append(label)
    peak = steps.columns["peak_allocated_bytes"].max
    if known(peak):
        drawing.trace(
            steps.x_values,
            peak,
            role="peak",
            label="step's peak allocated",
            unit=unit,
            kind="line",
            mode="lines",
            line={"width": 1, "shape": "vh" if not steps.envelope else "linear"},
            meaning=STEPS["peak_allocated_bytes"].meaning,
            feed={"stream": "steps", "field": "peak_allocated_bytes"},
        )
    if not samples.rows and not steps.rows:
        drawing.no_rows("samples", "no data in this window")
    else:
        for label in missing:
            drawing.unknown(label)
    if drawing.figure.data:
        drawing.capacity(window.run.get("capacity_bytes"), unit)
    return drawing.done()
