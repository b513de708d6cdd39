"""Fragmentation: memory that PyTorch holds and no tensor uses."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.wire import SAMPLES
from vramscope_server.analysis.window import RunWindow
from vramscope_server.figures.drawing import COUNT, Drawing, byte_unit, difference, highest, known, samples_of

NEEDS = {"samples": ["reserved_bytes", "allocated_bytes", "inactive_split_bytes", "alloc_retries"]}


def draw(window: RunWindow) -> go.Figure:
    """Free pieces in partly used segments, and all that is reserved and not allocated; retries where there were any."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    columns = samples.columns
    unused = difference(columns["reserved_bytes"], columns["allocated_bytes"])
    unit = byte_unit(highest(unused, columns["inactive_split_bytes"].max))
    drawing.y_axis(unit)
    if known(unused):
        drawing.trace(
            samples.x_values,
            unused,
            role="unused",
            label="reserved, not allocated",
            unit=unit,
            kind="line",
            part="mean" if samples.envelope else "value",
            line={"width": 1 if samples.envelope else 1.6},
            meaning="reserved minus allocated: whole cached segments, and free pieces inside used ones",
            feed={"stream": "samples", "field": "reserved_bytes", "minus": "allocated_bytes"},
        )
    elif samples.rows:
        drawing.unknown("reserved minus allocated")
    if not drawing.line(
        samples,
        "inactive_split_bytes",
        role="inactive-split",
        label="inactive split",
        unit=unit,
        meaning=SAMPLES["inactive_split_bytes"].meaning,
    ):
        if samples.rows:
            drawing.unknown("inactive split")
        else:
            drawing.say("nothing was recorded in this window")
    retries = columns["alloc_retries"].max
    if known(retries):
        if highest(retries) > 0:
            drawing.trace(
                samples.x_values,
                retries,
                role="retries",
                label="allocation retries",
                unit=COUNT,
                kind="line",
                axis="y2",
                line={"shape": "hv", "width": 1.2, "dash": "dash"},
                meaning=SAMPLES["alloc_retries"].meaning,
                feed={"stream": "samples", "field": "alloc_retries"},
            )
            drawing.y_axis(
                COUNT, "yaxis2", overlaying="y", side="right", showgrid=False, nticks=4, tickformat="d", tickmode="auto"
            )
            drawing.figure.update_layout(yaxis2_title={"text": "retries"}, margin_r=52)
        else:
            drawing.say("no allocation retries")
    return drawing.done()
