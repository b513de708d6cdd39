"""Memory of the device over time as one stack: the card, PyTorch's reserved memory, and the tensors.

``layout.meta``: ``levels`` has the legend's numbers of each level, ``peak`` the place of the highest allocated memory,
``covered`` the end of the last finished step on the axis: what lies behind it is replaced when that step ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.analysis.series.memory_stack import (
    PARTS,
    SAMPLE_COLUMNS,
    STEP_COLUMNS,
    StackRows,
    level_totals,
    part_sizes,
    peak_row,
    stack_rows,
    thinned,
)
from vramscope_server.figures.drawing import Drawing, known, run_unit

NEEDS: Final = {"steps": STEP_COLUMNS, "samples": SAMPLE_COLUMNS}
RESETS: Final = {
    1: ("reset", "other", "circle-open", "counters reset, exact",
        "other code reset the peak counters through PyTorch's functions; the peak is exact"),
    2: ("lower-bound", "capacity", "triangle-up", "counters reset: lower bound",
        "other code reset the peak counters outside PyTorch's functions; the peak may have been higher"),
}  # fmt: skip
"""Code of ``foreign_reset`` -> role, role of the colour, symbol, label and meaning."""


def draw(window: RunWindow) -> go.Figure:
    """Draw each part of the memory at the peak of each step."""
    drawing = Drawing.over(window)
    rows = rows_of(window)
    unit = run_unit(window.run)
    drawing.y_axis(unit)
    peak = peak_row(rows)
    if peak is None:
        if rows.along.size or window.device < 0:
            drawing.unknown("memory of the device")
        else:
            drawing.no_rows("samples", "no data in this window")
        return drawing.done()
    sizes = part_sizes(rows)
    shown = thinned(rows, window.points)
    drawn = part_sizes(shown)
    x, begin = (_axis(values, window) for values in (shown.along, shown.begin))
    for part in PARTS:
        if not known(sizes[part.role]):
            continue
        along, values = _columns(x, begin, drawn[part.role])
        drawing.trace(
            along,
            values,
            role=part.role,
            label=part.label,
            unit=unit,
            kind="area",
            stackgroup="memory",
            stackgaps="infer zero",
            line={"shape": "vh"},  # a row stands for what lies before its end
            meaning=part.meaning,
            visible=part.shown == "open",
            shown={
                "colour": "reserved-area" if part.role == "reserved" else part.role,
                "level": part.level,
                "shown": part.shown,
                "numbers": _numbers(sizes[part.role], rows, peak),
            },
        )
    _resets(drawing, rows, window, unit)
    _statements(drawing, rows, sizes, window)
    drawing.capacity(window.run.get("capacity_bytes"), unit)
    drawing.meta["levels"] = {level: _numbers(total, rows, peak) for level, total in level_totals(rows, sizes).items()}
    drawing.meta["peak"] = _place(rows, peak, window)
    drawing.meta["covered"] = float(_axis(rows.along[rows.finished][-1:], window)[0]) if rows.finished.any() else None
    return drawing.done()


def rows_of(window: RunWindow) -> StackRows:
    """Return every row of a window that was not thinned. Samples of a step that ends behind the window are left out."""
    columns = ({name: one.max for name, one in stream.columns.items()} for stream in (window.steps, window.samples))
    steps, samples = columns
    rows = stack_rows(steps, samples, window.x)
    return rows.take(np.flatnonzero(rows.finished)) if window.has_end and rows.finished.any() else rows


def _axis(along: FloatArray, window: RunWindow) -> FloatArray:
    """Return positions in units of the figure's axis."""
    if window.x == "step":
        return along
    seconds: FloatArray = (along - window.zero_ns) / 1e9
    return seconds


def _columns(x: FloatArray, begin: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Add a point where the first row begins, and one without a value where a hole ends. No place has two points: the page
    adds up the parts of each."""
    holes = np.flatnonzero(begin[1:] > x[:-1] + 1e-9) + 1
    at, ends = np.insert(x, holes, begin[holes]), np.insert(values, holes, np.nan)
    if begin[0] >= x[0]:
        return at, ends
    return np.r_[begin[0], at], np.r_[values[0], ends]


def _numbers(values: FloatArray, rows: StackRows, peak: int) -> dict[str, float | None]:
    """Return the legend's bytes over all rows: of the last finished step, of the peak's row, and the highest."""
    done = np.flatnonzero(rows.finished)
    last = values[done[-1]] if done.size else values[-1]
    highest = np.nanmax(values) if known(values) else np.nan
    return {
        name: float(one) if np.isfinite(one) else None
        for name, one in (("last", last), ("peak", values[peak]), ("highest", highest))
    }


def _place(rows: StackRows, peak: int, window: RunWindow) -> dict[str, Any]:
    return {
        "x": float(_axis(rows.along[peak : peak + 1], window)[0]),
        "step": int(rows.step[peak]) if np.isfinite(rows.step[peak]) else None,
        "first_step": int(rows.first_step[peak]) if np.isfinite(rows.first_step[peak]) else None,
        "finished": bool(rows.finished[peak]),
        "bytes": float(rows.allocated[peak]),
        "lower_bound": bool(rows.reset[peak] == max(RESETS)),
    }


def _resets(drawing: Drawing, rows: StackRows, window: RunWindow, unit: Any) -> None:
    """Mark each step (or group of steps) in which other code reset the peak counters."""
    for code, (role, colour, symbol, label, meaning) in RESETS.items():
        chosen = (rows.reset == code) & np.isfinite(rows.allocated)
        if not chosen.any():
            continue
        thin = thinned(rows.take(np.flatnonzero(chosen)), window.points)
        drawing.trace(
            _axis(thin.along, window),
            thin.allocated,
            role=role,
            label=label,
            unit=unit,
            kind="marker",
            mode="markers",
            marker={"symbol": symbol, "size": 9},
            meaning=meaning,
            shown={"colour": colour},
        )


def _statements(drawing: Drawing, rows: StackRows, sizes: Mapping[str, FloatArray], window: RunWindow) -> None:
    """Note what is unknown."""
    done = rows.finished
    unsplit, allocated = sizes["unsplit"][done], rows.allocated[done]
    complete = int((np.isfinite(allocated) & ~(unsplit > 0)).sum())
    if not done.any():
        drawing.say("no finished step: categories unknown")
    elif not (np.isfinite(allocated) & ~(unsplit >= allocated)).any():
        drawing.unknown("categories at the peak")
    elif complete < done.sum():
        steps = "steps or groups of steps" if (rows.first_step[done] < rows.step[done]).any() else "steps"
        drawing.say(
            f"grey: categories unknown in {int(done.sum()) - complete:,} of {int(done.sum()):,} {steps}; they are counted at "
            "some peaks only"
        )
    if not known(rows.reserved):
        drawing.unknown("reserved")
    read = int(np.isfinite(sizes["unusable"]).sum())
    if not known(rows.unusable):
        drawing.say("unusable: needs a recording")
    elif not read:
        drawing.say("unusable: not read at a peak")
    elif read < rows.along.size:
        drawing.say(f"unusable known in {read:,} of {rows.along.size:,} steps")
    if not known(rows.device):
        words = "other processes" if known(sizes["context"]) else "memory outside PyTorch"
        drawing.unknown(words)
    elif not known(sizes["context"]):
        drawing.say("unknown: the share of this process outside PyTorch")
