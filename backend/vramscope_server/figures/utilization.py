"""GPU utilization, power and temperature."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import CELSIUS, PERCENT, WATTS, Drawing, Unit, samples_of

ROWS = (
    ("gpu_utilization_percent", "utilization", "GPU utilization", PERCENT, 1.0),
    ("power_milliwatts", "power", "power", WATTS, 1e-3),
    ("temperature_celsius", "temperature", "temperature", CELSIUS, 1.0),
)
NEEDS = {"samples": [name for name, *_ in ROWS]}


def draw(window: RunWindow) -> go.Figure:
    """Draw one panel per known series, on a common x axis."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    shown: list[Unit] = []
    for name, role, label, unit, factor in ROWS:
        axis = "y" if not shown else f"y{len(shown) + 1}"
        if drawing.line(
            samples, name, role=role, label=label, unit=unit, factor=factor, axis=axis, meaning=SAMPLES[name].meaning
        ):
            shown.append(unit)
        elif samples.rows:
            drawing.unknown(label)
    height = 1 / max(1, len(shown))
    for i, unit in enumerate(shown):
        top = 1 - i * height
        options = {"domain": [top - height + (0.05 if i < len(shown) - 1 else 0), top], "nticks": 4}
        if unit is PERCENT:
            options |= {"range": [0, 104], "autorange": False, "tickvals": [0, 50, 100]}
        drawing.y_axis(unit, "yaxis" if i == 0 else f"yaxis{i + 1}", **options)
    if shown:
        drawing.figure.update_layout(xaxis_anchor="y" if len(shown) == 1 else f"y{len(shown)}")
    elif not samples.rows:
        drawing.no_rows("samples", "no data in this window")
    return drawing.done()
