"""Peak memory of a training with several changes against the work of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from vramscope_server.figures.drawing import Drawing, byte_unit, escaped
from vramscope_server.figures.memory_against_time import beside, pareto_front

ROOM: Final = 0.15


class Point(NamedTuple):
    """A training with some changes."""

    name: str
    work_ratio: float
    """Floating-point operations of a step, as a multiple of those without a change."""
    peak_bytes: int
    fits: bool


def draw(points: Sequence[Point], line_bytes: int | None = None) -> go.Figure:
    """Draw one point for each set of changes, the training without one first. A line joins the Pareto front.

    line_bytes   what the card has for PyTorch; None draws no line
    """
    drawing = Drawing("run")
    drawing.meta["kind"] = "static"
    if not points:
        return drawing.done()
    work = np.array([point.work_ratio for point in points])
    peaks = np.array([float(point.peak_bytes) for point in points])
    unit = byte_unit(float(peaks.max()))
    front = pareto_front(work, peaks)
    if len(points) > 1:
        drawing.trace(
            work[front], peaks[front], role="pareto", label="least memory for the work", unit=unit, kind="line",
            hoverinfo="skip", hovertemplate=None, line={"width": 1.2, "dash": "dot", "shape": "hv"},
        )  # fmt: skip
    left, right = float(work.min()) - ROOM, float(work.max()) + ROOM
    if line_bytes is not None:
        drawing.trace(
            np.array([left, right]), np.array([line_bytes, line_bytes], float), role="capacity", unit=unit, kind="line",
            label="the card without the CUDA context", hoverinfo="skip", hovertemplate=None, line={"width": 1, "dash": "dash"},
        )  # fmt: skip
    places = beside([(ratio, peak, len(point.name)) for ratio, peak, point in zip(work, peaks, points, strict=True)])
    for position, (point, place) in enumerate(zip(points, places, strict=True)):
        drawing.trace(
            work[[position]],
            peaks[[position]],
            role=f"run-{position}",
            label=f"{point.name} ({'fits' if point.fits else 'does not fit'})",
            unit=unit,
            kind="marker",
            mode="markers+text",
            text=[escaped(point.name) if place else ""],
            textposition=place or "top center",
            cliponaxis=False,
            marker={"size": 11, "symbol": "diamond" if not position else "circle" if point.fits else "circle-open"},
            hovertemplate=f"%{{y:.{unit.decimals}f}} {unit.name} peak reserved, %{{x:.2f}} times the work"
            f"<extra>{escaped(point.name)}</extra>",
        )
    drawing.y_axis(unit)
    drawing.figure.update_xaxes(title={"text": "FLOPs of a step, no change = 1"}, range=[left, right])
    highest = max(float(peaks.max()), line_bytes or 0.0)
    drawing.figure.update_yaxes(
        title={"text": f"peak reserved ({unit.name})"}, range=[0, highest / unit.divisor * 1.15]
    )
    return drawing.done(hovermode="closest")
