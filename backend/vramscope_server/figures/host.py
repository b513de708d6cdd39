"""Memory of the host: this process, and all of them."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.series.window import RunWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, samples_of

LABELS = {"host_used_bytes": "host in use, all processes", "process_rss_bytes": "this process (RSS)"}
NEEDS = {"samples": list(LABELS)}


def draw(window: RunWindow) -> go.Figure:
    """Resident memory of the training process, and what all processes of its host use."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    unit = byte_unit(highest(*(samples.columns[name].max for name in LABELS)))
    drawing.y_axis(unit)
    for name, label in LABELS.items():
        role = name.removesuffix("_bytes").replace("_", "-")
        if not drawing.line(samples, name, role=role, label=label, unit=unit, meaning=SAMPLES[name].meaning):
            drawing.unknown(label)
    if not samples.rows:
        drawing.missing.clear()
        drawing.no_rows("samples", "nothing was recorded in this window")
    return drawing.done()
