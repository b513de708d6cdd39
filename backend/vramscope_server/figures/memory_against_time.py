"""Memory against time: what a saving of memory costs in time, run by run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.window import FloatArray, RunWindow
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, escaped, known
from vramscope_server.figures.peaks_over_steps import COLOURS, role_of

NEEDS = {"steps": ["peak_allocated_bytes", "duration_ns"]}


def draw(windows: list[RunWindow]) -> go.Figure:
    """One point a run: step time against highest peak. The line joins the runs that no other beats in both."""
    drawing = Drawing("run")
    drawing.meta["kind"] = "static"
    seconds = np.array([_step_seconds(window) for window in windows])
    peaks = np.array([_peak(window) for window in windows])
    names = [str(window.run["name"]) for window in windows]
    whole = np.isfinite(seconds) & np.isfinite(peaks)
    for name, complete in zip(names, whole, strict=True):
        if not complete:
            drawing.say(f"{name}: step time or peak is unknown")
    if not whole.any():
        return drawing.done()
    unit = byte_unit(float(peaks[whole].max()))
    slow = float(seconds[whole].max()) >= 1
    time = Unit("s", "seconds", 1.0, 2) if slow else Unit("ms", "seconds", 1e-3, 1)
    front = pareto_front(seconds, peaks)
    if len(front) > 1:
        drawing.trace(
            seconds[front] / time.divisor,
            peaks[front],
            role="pareto",
            label="not beaten in both",
            unit=unit,
            kind="line",
            hoverinfo="skip",
            hovertemplate=None,
            line={"width": 1.2, "dash": "dot", "shape": "hv"},
        )
    for position in (int(i) for i in np.flatnonzero(whole)):
        name = names[position]
        drawing.trace(
            seconds[[position]] / time.divisor,
            peaks[[position]],
            role=role_of(position) if position < 1 + COLOURS else f"{role_of(position)}-{position}",
            label=f"{name} (baseline)" if position == 0 and len(windows) > 1 else name,
            unit=unit,
            kind="marker",
            mode="markers+text",
            text=[escaped(name if len(name) <= 24 else f"{name[:22]}…")],
            textposition=_beside(seconds[position], seconds[whole]),
            cliponaxis=False,
            shown={"colour": role_of(position), "run": windows[position].run["run_id"]},
            marker={"size": 13, "symbol": "diamond" if position == 0 else "circle"},
            hovertemplate=(
                f"%{{y:.{unit.decimals}f}} {unit.name} peak, %{{x:.{time.decimals}f}} {time.name} a step"
                f"<extra>{escaped(name)}</extra>"
            ),
        )
    drawing.y_axis(unit)
    # room for the names at the edges
    spread = seconds[whole] / time.divisor
    room = max(float(np.ptp(spread)) * 0.15, float(spread.max()) * 0.1)
    drawing.figure.update_xaxes(
        title={"text": f"step time ({time.name}), median"},
        range=[float(spread.min()) - room, float(spread.max()) + room],
    )
    drawing.figure.update_yaxes(range=[0, float(peaks[whole].max()) / unit.divisor * 1.15])
    return drawing.done(hovermode="closest")


def pareto_front(seconds: FloatArray, peaks: FloatArray) -> list[int]:
    """Positions of the runs than which no other is both faster and smaller, from fast to slow.

    seconds, peaks   shape (n,); pairs with a NaN are left out
    """
    front: list[int] = []
    best = np.inf
    for position in np.lexsort((peaks, seconds)):
        if np.isfinite(seconds[position]) and np.isfinite(peaks[position]) and peaks[position] < best:
            front.append(int(position))
            best = peaks[position]
    return front


def _beside(at: float, all_seconds: FloatArray) -> str:
    """Where a name has room: inwards at the edges."""
    low, high = float(all_seconds.min()), float(all_seconds.max())
    share = (at - low) / (high - low) if high > low else 0.5
    # neighbours on the axis take turns, so that close ones do not write over each other
    upright = "bottom" if int((all_seconds < at).sum()) % 2 else "top"
    return f"{upright} {'right' if share < 0.25 else 'left' if share > 0.75 else 'center'}"


def _step_seconds(window: RunWindow) -> float:
    """The run's own median where the row holds it, else the mean over the window."""
    median = window.run.get("step_seconds_median")
    if median is not None:
        return float(median)
    durations = window.steps.columns["duration_ns"].mean
    return float(np.nanmean(durations)) * 1e-9 if known(durations) else float("nan")


def _peak(window: RunWindow) -> float:
    peaks = window.steps.columns["peak_allocated_bytes"].max
    return float(np.nanmax(peaks)) if known(peaks) else float("nan")
