"""Fragmentation: memory that PyTorch holds and no tensor uses."""

from __future__ import annotations

import plotly.graph_objects as go

from vramscope.wire import SAMPLES
from vramscope_server.analysis.window import RunWindow
from vramscope_server.figures.drawing import COUNT, Drawing, byte_unit, difference, highest, known, samples_of

NEEDS = {
    "samples": [
        "reserved_bytes", "active_bytes", "requested_bytes", "stranded_bytes", "inactive_split_bytes", "alloc_retries",
    ]
}  # fmt: skip


def draw(window: RunWindow) -> go.Figure:
    """What is reserved and not asked for: free, of that stranded, and rounding; retries where there were any."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    columns = samples.columns
    free = difference(columns["reserved_bytes"], columns["active_bytes"])
    rounding = difference(columns["active_bytes"], columns["requested_bytes"])
    unit = byte_unit(highest(free, rounding, columns["stranded_bytes"].max, columns["inactive_split_bytes"].max))
    drawing.y_axis(unit)
    part = "mean" if samples.envelope else "value"
    line = {"width": 1 if samples.envelope else 1.6}
    for values, role, label, first, second, meaning in (
        (
            free,
            "unused",
            "free",
            "reserved_bytes",
            "active_bytes",
            "reserved minus active: cached, in whole segments or pieces",
        ),
        (
            rounding,
            "rounding",
            "rounding",
            "active_bytes",
            "requested_bytes",
            "what blocks in use have beyond what was asked for",
        ),
    ):
        if known(values):
            feed = {"stream": "samples", "field": first, "minus": second}
            drawing.trace(
                samples.x_values, values, role=role, label=label, unit=unit, kind="line", part=part, line=line,
                meaning=meaning, feed=feed,
            )  # fmt: skip
        elif samples.rows:
            drawing.unknown(label)
    for name, role, label in (
        ("stranded_bytes", "stranded", "stranded"),
        ("inactive_split_bytes", "inactive-split", "inactive split"),
    ):
        # Stranded is read now and then: the line goes from reading to reading.
        shown = drawing.line(
            samples,
            name,
            role=role,
            label=label,
            unit=unit,
            meaning=SAMPLES[name].meaning,
            connectgaps=name == "stranded_bytes",
        )
        if not shown and samples.rows and name == "stranded_bytes":
            drawing.say("stranded: unknown until a window was recorded")
        elif not shown and samples.rows:
            drawing.unknown(label)
    if not samples.rows:
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
            drawing.count_axis("retries")
        else:
            drawing.say("no allocation retries")
    return drawing.done()
