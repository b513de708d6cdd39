"""Parts of reserved memory through a recording: requested, rounding, free, unusable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.fragmentation.breakdown import Breakdown
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit

PARTS = (
    ("requested", "requested", "requested, in blocks that tensors own or other streams still use"),
    ("rounding", "rounding", "allocated minus requested"),
    ("usable", "free", "free and usable for this run's requests, weighted by size"),
    ("unusable", "unusable", "free bytes in pieces or pools that this run's requests cannot use"),
)
_MOST_TICKS = 8
_AT_THE_RIGHT = 0.9


def draw(strip: Breakdown, steps: Sequence[tuple[int, int]], *, capacity_bytes: int | None) -> go.Figure:
    """Draw stacked parts after each event. ``steps``: (step, first event), for the ticks of the axis."""
    drawing = Drawing("event")
    drawing.where = "in this recording"
    x = strip.event.astype(np.float64)
    parts = {name: getattr(strip, name).astype(np.float64) for name, _, _ in PARTS}
    unit = byte_unit(float(sum(parts.values()).max()))
    drawing.y_axis(unit)
    for name, label, meaning in PARTS:
        drawing.trace(
            x,
            parts[name],
            role=name,
            label=label,
            unit=unit,
            kind="area",
            stackgroup="parts",
            meaning=meaning,
            line={"shape": "hv"},
        )
    total = strip.reserved.astype(np.float64)
    drawing.trace(
        x,
        total,
        role="total",
        label="reserved",
        unit=unit,
        kind="line",
        line={"width": 1, "shape": "hv"},
        meaning="sum of the parts",
    )
    _marks(drawing, strip, total, unit)
    ticks = _ticks([(step, at) for step, at in steps if strip.event[0] <= at <= strip.event[-1]])
    of_steps = {
        "tickmode": "array",
        "tickvals": [at for _, at in ticks],
        "ticktext": [f"{step:,}" for step, _ in ticks],
    }
    drawing.figure.update_xaxes(
        title={"text": "step" if ticks else "event"},
        tickangle=0,
        unifiedhovertitle={"text": "event %{x:.0f}"},
        **(of_steps if ticks else {"nticks": 9, "tickformat": ",d"}),
    )
    drawing.capacity(capacity_bytes, unit)
    if strip.misfits:
        drawing.say(f"{strip.misfits:,} events do not fit: the history is incomplete, and the parts are not exact")
    return drawing.done()


def _marks(drawing: Drawing, strip: Breakdown, total: np.ndarray[tuple[int], np.dtype[np.float64]], unit: Unit) -> None:
    first, last = int(strip.event[0]), int(strip.event[-1])
    drawing.figure.add_annotation(
        name="peak",
        text="peak",
        x=float(strip.event[strip.peak]),
        y=float(total[strip.peak]) / unit.divisor,
        ax=0,
        ay=-18,
        xanchor="right" if strip.event[strip.peak] - first > _AT_THE_RIGHT * (last - first) else "center",
        arrowhead=0,
        arrowwidth=1,
    )
    if strip.ooms:
        at = np.array(strip.ooms)
        meaning = "failed request"
        drawing.out_of_memory(strip.event[at].astype(np.float64), total[at], unit, meaning=meaning)


def _ticks(steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return steps with round numbers, few enough that their labels do not overlap."""
    if not steps:
        return []
    span = steps[-1][0] - steps[0][0]
    every = next(
        size * 10**power for power in range(19) for size in (1, 2, 5) if size * 10**power * _MOST_TICKS >= span
    )
    return [(step, at) for step, at in steps if step % every == 0]
