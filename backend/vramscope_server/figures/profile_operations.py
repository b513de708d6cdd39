"""Most expensive operations of a profile, as bars by phase."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.profile.tables import Table
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, escaped

MOST_BARS: Final = 18
WORDS: Final = {
    "self_peak_bytes": "alive at the peak",
    "self_allocated_bytes": "allocated in the window",
    "self_cpu_ns": "CPU self",
    "self_device_ns": "device self",
}


def draw(table: Table, quantity: str) -> go.Figure:
    """Draw one bar per operation, the largest on top, split by phase."""
    drawing = Drawing("name")
    drawing.meta["kind"] = "static"
    values = table.columns[quantity]
    if not len(table) or (values < 0).any():
        drawing.say(f"{WORDS[quantity]}: unknown")
        return drawing.done()
    totals: dict[str, int] = {}
    parts: dict[tuple[int, str], int] = {}
    for name, phase, value in zip(table.names, table.columns["phase"].tolist(), values.tolist(), strict=True):
        totals[name] = totals.get(name, 0) + value
        parts[phase, name] = parts.get((phase, name), 0) + value
    names = [name for name, value in sorted(totals.items(), key=lambda item: -item[1]) if value > 0][:MOST_BARS]
    if not names:
        drawing.say(f"nothing {WORDS[quantity]}")
        return drawing.done()
    unit = byte_unit(totals[names[0]]) if quantity.endswith("_bytes") else time_unit(totals[names[0]])
    labels = [_short(name) for name in names]
    for phase in sorted({phase for phase, _ in parts}):
        held = np.array([parts.get((phase, name), 0) for name in names], np.float64)
        if not held.any():
            continue
        label = PHASES[phase] if 0 <= phase < len(PHASES) else "unknown phase"
        drawing.figure.add_trace(
            go.Bar(
                orientation="h",
                x=held / unit.divisor,
                y=labels,
                name=label,
                customdata=[escaped(name) for name in names],
                hovertemplate=f"%{{customdata}}<br>%{{x:.{unit.decimals}f}} {unit.name} {WORDS[quantity]}"
                f"<extra>{label}</extra>",
                meta={
                    "role": f"phase-{label}" if phase >= 0 else "phase-other",
                    "label": label,
                    "kind": "bar",
                    "part": "value",
                    "unit": unit.quantity,
                    "divisor": unit.divisor,
                },
            )
        )
    drawing.figure.update_xaxes(title={"text": unit.name}, showgrid=True, nticks=6, rangemode="tozero")
    drawing.figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=labels[::-1],
        automargin=True,
        nticks=0,
        tickmode="array",
        tickvals=labels,
        ticktext=[escaped(label) for label in labels],
        ticks="",
    )
    left = len([value for value in totals.values() if value > 0]) - len(names)
    if left:
        drawing.say(f"{left} smaller operations: see the table")
    return drawing.done(barmode="stack", bargap=0.25, hovermode="closest", margin={"l": 12, "r": 12, "t": 6, "b": 40})


def time_unit(top_ns: float) -> Unit:
    """Return the unit for nanoseconds: seconds, milliseconds or microseconds."""
    if top_ns >= 1e9:
        return Unit("s", "ns", 1e9, 2)
    return Unit("ms", "ns", 1e6, 2) if top_ns >= 1e6 else Unit("µs", "ns", 1e3, 1)


def _short(name: str, most: int = 38) -> str:
    name = name.replace("autograd::engine::evaluate_function: ", "evaluate ")
    return name if len(name) <= most else f"{name[: most - 1]}…"
