"""Host memory of this process, of those that it started, and of all processes."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, run_unit, samples_of

LABELS = {"host_used_bytes": "host in use, all processes", "process_rss_bytes": "this process (RSS)"}
WHERE_KNOWN = {
    "pinned_bytes": "pinned by PyTorch",
    "process_anonymous_bytes": "this process, own",
    "child_processes_bytes": "its child processes",
    "shared_memory_bytes": "shared memory",
}
"""Pinned memory is known with CUDA and PyTorch 2.8, the parts of the sum with Linux 5.4."""
NEEDS = {"samples": [*LABELS, *WHERE_KNOWN]}


def draw(window: RunWindow) -> go.Figure:
    """Draw the memory in use on the host, and the parts of it that belong to the training."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    unit = run_unit(window.run)
    drawing.y_axis(unit)
    for name, label in (LABELS | WHERE_KNOWN).items():
        role = name.removesuffix("_bytes").replace("_", "-")
        is_drawn = drawing.line(samples, name, role=role, label=label, unit=unit, meaning=SAMPLES[name].meaning)
        if not is_drawn and name in LABELS:
            drawing.unknown(label)
    if not samples.rows:
        drawing.missing.clear()
        drawing.no_rows("samples", "no data in this window")
    return drawing.done()
