"""Memory of each process on the device over time."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from vramscope.protocol.series import OTHER_PROCESSES, SAMPLES
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, highest, run_unit, samples_of

LABELS: Final = {"process_device_bytes": "this process", "others_device_bytes": "all other processes"}
POOLS: Final = "private_pools_bytes"
NEEDS: Final = {"samples": [*LABELS, POOLS, *OTHER_PROCESSES]}


def draw(window: RunWindow) -> go.Figure:
    """Draw this process, the largest other ones, and the sum of all others."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    unit = run_unit(window.run)
    drawing.y_axis(unit)
    named = {name: window.process_names.get(name, f"process {at}") for at, name in enumerate(OTHER_PROCESSES, 1)}
    for at, (name, label) in enumerate({**LABELS, **named}.items()):
        is_sum = name == "others_device_bytes"
        is_drawn = drawing.line(
            samples,
            name,
            role=name.removesuffix("_bytes").replace("_", "-"),
            label=label,
            unit=unit,
            meaning=SAMPLES[name].meaning,
            shown={"colour": "others" if is_sum else f"series-{max(0, at - 1)}"},
            line={"width": 1.2, "dash": "dot"} if is_sum else {"width": 1.6},
        )
        if not is_drawn and name in LABELS:
            drawing.unknown(label)
    if highest(samples.columns[POOLS].max) > 0:
        drawing.line(
            samples,
            POOLS,
            role="private-pools",
            label="memory pools of this process",
            unit=unit,
            meaning="reserved by PyTorch for an inference engine or for CUDA graphs; an engine that sleeps has released it",
            shown={"colour": "private"},
            line={"width": 1.2, "dash": "dash"},
        )
    if not samples.rows:
        drawing.missing.clear()
        drawing.no_rows("samples", "no data in this window")
    drawing.capacity(window.run.get("capacity_bytes"), unit)
    return drawing.done()
