"""Host memory of this process and of all processes."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, run_unit, samples_of

LABELS = {"host_used_bytes": "host in use, all processes", "process_rss_bytes": "this process (RSS)"}
PINNED = {"pinned_bytes": "pinned by PyTorch"}
"""Drawn where it is known: with CUDA, and PyTorch 2.8 or newer."""
NEEDS = {"samples": [*LABELS, *PINNED]}


def draw(window: RunWindow) -> go.Figure:
    """Draw resident memory of the training process, its pinned memory, and memory in use on its host."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    unit = run_unit(window.run)
    drawing.y_axis(unit)
    for name, label in (LABELS | PINNED).items():
        role = name.removesuffix("_bytes").replace("_", "-")
        is_drawn = drawing.line(samples, name, role=role, label=label, unit=unit, meaning=SAMPLES[name].meaning)
        if not is_drawn and name in LABELS:
            drawing.unknown(label)
    if not samples.rows:
        drawing.missing.clear()
        drawing.no_rows("samples", "no data in this window")
    return drawing.done()
