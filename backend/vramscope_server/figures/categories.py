"""Memory by category at the peak of each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import CATEGORIES
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, known

TOTAL = "peak_allocated_bytes"
PARTS = [f"peak_{category}_bytes" for category in CATEGORIES]
NEEDS = {"steps": [TOTAL, *PARTS]}
AT_PEAK = (TOTAL, PARTS)

# From what stays to what comes and goes, so that the steady floor lies at the bottom.
STACK = ("parameters", "buffers", "optimizer", "gradients", "activations", "other")
LABELS = {"optimizer": "optimizer state", "activations": "activations, temporaries"}
"""Live data has activations and temporaries as one sum. A recorded step separates them."""


def draw(window: RunWindow) -> go.Figure:
    """Draw stacked categories at each step's peak; of thinned steps, at the highest peak of each bucket."""
    drawing = Drawing.over(window)
    steps = window.steps
    peak = steps.columns[TOTAL].max
    parts = {category: _part(window, category) for category in STACK}
    unit = byte_unit(highest(peak, *parts.values()))
    drawing.y_axis(unit)
    seen = [category for category in STACK if known(parts[category])]
    for category in seen:
        drawing.trace(
            steps.x_values,
            parts[category],
            role=category,
            label=LABELS.get(category, category),
            unit=unit,
            kind="area",
            stackgroup="categories",
            stackgaps="interpolate",  # a step that was not split is no step without parameters
            meaning=f"{LABELS.get(category, category)} at the step's peak",
            feed={"stream": "steps", "field": f"peak_{category}_bytes"},
        )
    if known(peak):
        drawing.trace(
            steps.x_values,
            peak,
            role="peak",
            label="peak allocated",
            unit=unit,
            kind="line",
            meaning="peak allocated within the step, from the allocator's counter",
            feed={"stream": "steps", "field": TOTAL},
            line={"width": 1.2},
        )
    split = max((int(np.isfinite(parts[category]).sum()) for category in seen), default=0)
    if seen and split < len(steps.x_values):
        what = "stretches" if steps.envelope else "steps"
        drawing.say(f"split in {split} of {len(steps.x_values)} {what}; interpolated between them")
    if not steps.rows:
        drawing.no_rows("steps", "no finished step in this window")
    elif not seen:
        drawing.unknown("categories at the peak")
    elif missing := [LABELS.get(category, category) for category in STACK if category not in seen]:
        for label in missing:
            drawing.unknown(label)
    if drawing.figure.data:
        drawing.capacity(window.run.get("capacity_bytes"), unit)
    return drawing.done()


def _part(window: RunWindow, category: str) -> Any:
    steps = window.steps
    name = f"peak_{category}_bytes"
    return steps.at_peak[name] if name in steps.at_peak else steps.columns[name].mean
