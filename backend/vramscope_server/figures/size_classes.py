"""Size classes: requested bytes of a recording, and free bytes at one event, by powers of two."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.trace.size_classes import POOLS, SizeClasses
from vramscope_server.figures.drawing import Drawing, byte_unit

LABELS = {"small": "small pool", "large": "large pool", "private": "private pools"}


def draw(asked: SizeClasses, free: SizeClasses) -> go.Figure:
    """Draw two panels on one axis of sizes: bytes requested in the window, and bytes free at the event."""
    drawing = Drawing("size")
    drawing.meta["kind"] = "static"
    used = np.flatnonzero((asked.count + free.count).sum(axis=0))
    if not len(used):
        drawing.say("no requests and no free blocks")
        return drawing.done()
    shown = np.arange(used[0], used[-1] + 1)
    sizes = [amount(1 << (asked.first + int(klass))).replace(".0 ", " ") for klass in shown]
    for axis, title, classes in (("y", "requested", asked), ("y2", "free", free)):
        total = classes.size_bytes[:, shown].sum(axis=0)
        unit = byte_unit(float(total.max()))
        for pool, name in enumerate(POOLS):
            held = classes.size_bytes[pool, shown].astype(np.float64)
            if not held.any():
                continue
            count = classes.count[pool, shown]
            drawing.trace(
                np.array(sizes),
                held,
                role=f"pool-{name}",
                label=LABELS[name],
                unit=unit,
                kind="bar",
                axis=axis,
                customdata=count,
                hovertemplate=f"%{{y:.{unit.decimals}f}} {unit.name} {title} in %{{customdata:,}} "
                f"{'requests' if axis == 'y' else 'pieces'}<extra>{LABELS[name]}</extra>",
            )
        domain = [0.56, 1.0] if axis == "y" else [0.0, 0.44]
        drawing.y_axis(unit, "yaxis" if axis == "y" else "yaxis2", domain=domain)
        drawing.figure.update_layout(
            {
                "yaxis" if axis == "y" else "yaxis2": {
                    "title": {"text": f"{title}<br>({unit.name})", "standoff": 2},
                    "nticks": 4,
                }
            }
        )
    drawing.figure.update_xaxes(
        type="category",
        categoryorder="array",
        categoryarray=sizes,
        anchor="y2",
        title={"text": ""},
        tickangle=-45,
        unifiedhovertitle={"text": "up to %{x}"},
    )
    return drawing.done(barmode="stack", bargap=0.15, margin={"l": 68, "r": 12, "t": 10, "b": 64})
