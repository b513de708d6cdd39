"""Allocated memory within one step of several runs, on one axis."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped, highest
from vramscope_server.figures.peaks_over_steps import role_of


def draw(lines: Sequence[tuple[str, int, FloatArray, FloatArray]]) -> go.Figure:
    """Draw ``(name, position among the compared runs, share of the step in %, allocated bytes)`` of each; the baseline is thick."""
    drawing = Drawing("share")
    drawing.meta["kind"] = "static"
    unit = byte_unit(highest(*(values for _, _, _, values in lines)))
    for name, position, share, values in lines:
        drawing.trace(
            share,
            values,
            role=role_of(position),
            label=f"{name} (baseline)" if position == 0 else name,
            unit=unit,
            kind="line",
            line={"width": 2.6 if position == 0 else 1.6, "shape": "hv"},
            hovertemplate=f"%{{y:.{unit.decimals}f}} {unit.name}<extra>{escaped(name)}</extra>",
        )
    drawing.y_axis(unit)
    drawing.figure.update_xaxes(
        title={"text": "share of the step’s allocations and frees (%)"},  # noqa: RUF001 - an apostrophe
        unifiedhovertitle={"text": "at %{x:.0f} % of the step"},
        range=[0, 100],
    )
    return drawing.done()
