"""Last minute before an out-of-memory error: allocated, reserved and device memory, up to the error."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import OTHER_PROCESSES, SAMPLES, UNKNOWN
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, known

SHOWN = {"device_used_bytes": "device in use", "reserved_bytes": "reserved", "allocated_bytes": "allocated"}


def draw(
    samples: dict[str, bytes],
    at_ns: int,
    *,
    at_error: dict[str, int | None],
    asked_bytes: int | None,
    capacity_bytes: int | None,
) -> go.Figure:
    """Draw the figure. The x axis is seconds, 0 at the error.

    samples    columns as in oom_record.OomRecord
    at_error   values of the columns SHOWN at the error itself; None: not known
    """
    drawing = Drawing("error")
    drawing.meta["kind"] = "static"
    columns = {name: np.frombuffer(column, "<i8").astype(np.float64) for name, column in samples.items()}
    for values in columns.values():
        values[values == UNKNOWN] = np.nan
    x = (columns.get("time_ns", np.empty(0)) - at_ns) / 1e9
    # The sampler may run while the error is recorded; and much may be allocated between two samples.
    until = x <= 0
    x = np.append(x[until], 0.0)
    for name, values in columns.items():
        last = at_error.get(name)
        columns[name] = np.append(values[until], np.nan if last is None else last)
    reserved_bytes = at_error.get("reserved_bytes")
    series = {name: columns[name] for name in SHOWN if name in columns and known(columns[name])}
    top = highest(*series.values(), np.array([float(capacity_bytes or 0)]))
    unit = byte_unit(top)
    drawing.y_axis(unit)
    for name, values in series.items():
        line = {"width": 1.2, "dash": "dot"} if name == "device_used_bytes" else {"width": 1.6}
        drawing.trace(
            x,
            values,
            role=name.removesuffix("_bytes").replace("_", "-"),
            label=SHOWN[name],
            unit=unit,
            kind="line",
            line=line,
            meaning=SAMPLES[name].meaning,
        )
    for at, name in enumerate(OTHER_PROCESSES):
        if series and name in columns and known(columns[name]):
            drawing.trace(
                x,
                columns[name],
                role=name.removesuffix("_bytes").replace("_", "-"),
                label=f"other process {at + 1}",
                unit=unit,
                kind="line",
                line={"width": 1.6},
                meaning=SAMPLES[name].meaning,
                shown={"colour": f"series-{at + 1}"},
            )
    for name, label in SHOWN.items():
        if name not in series and series:
            drawing.unknown(label)
    if series and asked_bytes is not None and reserved_bytes is not None:
        drawing.trace(
            np.array([0.0, 0.0]),
            np.array([reserved_bytes, reserved_bytes + asked_bytes], np.float64),
            role="retries",
            label="requested",
            unit=unit,
            kind="line",
            mode="lines+markers",
            line={"width": 3},
            meaning="the request, on top of reserved memory",
        )
    if not series:
        drawing.say("No samples before the error")
    else:
        drawing.capacity(capacity_bytes, unit)
        # Space above the capacity for its name and for the request.
        most = max(top, float((reserved_bytes or 0) + (asked_bytes or 0)))
        drawing.figure.update_yaxes(range=[0, most / unit.divisor * 1.12])
        drawing.figure.add_shape(
            name="error", type="line", xref="x", yref="paper", x0=0, x1=0, y0=0, y1=1, line={"width": 1, "dash": "dot"}
        )
    drawing.figure.update_xaxes(title={"text": "seconds before the error"}, unifiedhovertitle={"text": "%{x:.1f} s"})
    return drawing.done()
