"""Peaks of several runs side by side: categories of allocated, and reserved."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import CATEGORIES
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, known
from vramscope_server.figures.peak_bounds import at_least, bound_of, say_bounds

TOTAL = "peak_allocated_bytes"
PARTS = [f"peak_{category}_bytes" for category in CATEGORIES]
AT_PEAK = (TOTAL, PARTS)
STACK = ("parameters", "buffers", "workspaces", "optimizer", "gradients", "activations", "other")
"""Categories from what stays to what comes and goes, so that the steady ones lie at the bottom."""
LABELS = {"optimizer": "optimizer state", "activations": "activations, temporaries"}
NEEDS = {"steps": [TOTAL, "peak_reserved_bytes", *PARTS]}

FEW: Final = 6
"""Up to this number of runs their names have room."""


def draw(windows: list[RunWindow]) -> go.Figure:
    """Draw a stacked bar per run at its highest step peak in the window, with a mark at peak reserved.

    A run with samples alone has a bar at its highest sample. ``≥`` stands above each peak that is a lower bound.
    """
    drawing = Drawing("run")
    drawing.meta["kind"] = "static"
    names = _distinct([str(window.run["name"]) for window in windows])
    at = [_at_peak(window) for window in windows]
    peaks = np.array([row.get(TOTAL, _sampled(window)) for window, row in zip(windows, at, strict=True)])
    reserved = np.array([_top(window.steps.columns["peak_reserved_bytes"].max) for window in windows])
    unit = byte_unit(float(np.nanmax(np.concatenate([peaks, reserved, [0.0]]))))
    x = np.array(names, dtype=object)
    drawn = np.zeros(len(windows))
    for category in STACK:
        values = np.array([row.get(f"peak_{category}_bytes", np.nan) for row in at])
        if known(values):
            label = LABELS.get(category, category)
            drawing.trace(x, values, role=category, label=label, unit=unit, kind="bar")
            drawn += np.nan_to_num(values)
    rest = np.where((drawn == 0) & np.isfinite(peaks), peaks, np.nan)
    if known(rest):
        # hatched, in the colour of no category: it must not be taken for parameters or for "other"
        drawing.trace(
            x,
            rest,
            role="unknown",
            label="allocated, categories unknown",
            unit=unit,
            kind="bar",
            shown={"colour": "border", "hatched": True},
            marker={"pattern": {"shape": "/", "size": 7, "solidity": 0.3}},
        )
    if known(reserved):
        drawing.trace(
            x,
            reserved,
            role="reserved",
            label="peak reserved",
            unit=unit,
            kind="marker",
            mode="markers",
            shown={"swatch": "line"},
            marker={"symbol": "line-ew-open", "size": max(6, min(26, 600 // len(windows))), "line": {"width": 3}},
        )
    for window, name, peak in zip(windows, names, peaks, strict=True):
        if not np.isfinite(peak):
            drawing.say(f"{window.run['name']}: unknown step peaks")
        elif at_least(window):
            top = peak / unit.divisor
            drawing.figure.add_annotation(x=name, y=top, text="≥", name="bound", showarrow=False, yanchor="bottom")
    say_bounds(drawing, windows)
    drawing.y_axis(unit)
    drawing.figure.update_xaxes(type="category", title=None, ticks="", automargin=True)
    return drawing.done(barmode="stack", bargap=0.45, hovermode="x unified")


def _at_peak(window: RunWindow) -> dict[str, float]:
    """Return total and parts at the highest step peak; empty if unknown."""
    steps = window.steps
    total: FloatArray = steps.at_peak.get(TOTAL, steps.columns[TOTAL].max)
    if not known(total):
        return {}
    i = int(np.nanargmax(total))
    parts = [f"peak_{category}_bytes" for category in CATEGORIES]
    values = {name: steps.at_peak[name] if name in steps.at_peak else steps.columns[name].mean for name in parts}
    return {TOTAL: float(total[i]), **{name: float(series[i]) for name, series in values.items()}}


def _sampled(window: RunWindow) -> float:
    """Return the highest sample of a run without step peaks."""
    sampled = bound_of(window)
    return float(sampled.bytes) if sampled.is_lower and sampled.bytes is not None else float("nan")


def _top(values: FloatArray) -> float:
    return float(np.nanmax(values)) if known(values) else float("nan")


def _distinct(names: list[str]) -> list[str]:
    """Return names as labels of a category axis: escaped, shortened, numbered if equal. Of many runs they stand upright."""
    ends = (14, 12) if len(names) <= FEW else (8, 7)
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        short = name if len(name) <= sum(ends) + 2 else f"{name[: ends[0]]}…{name[-ends[1] :]}"
        seen[short] = seen.get(short, 0) + 1
        labels.append(short if seen[short] == 1 else f"{short} ({seen[short]})")
    return [label.replace("<", "&lt;") for label in labels]
