"""Peak memory against step time of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing, Unit, byte_unit, escaped, known
from vramscope_server.figures.peak_bounds import MOST_SAID, at_least, say_bounds
from vramscope_server.figures.peaks_over_steps import COLOURS, role_of, shown_of

NEEDS = {"steps": ["peak_allocated_bytes", "duration_ns"]}

Box = tuple[float, float, float, float]
"""Rectangle: left, bottom, right, top."""
MOST_LETTERS = 60
"""Maximum length of the names on the Pareto front."""
MOST_NAMES = 14
"""With more runs, only the baseline and the Pareto front have labels. The others show their name on hover."""


def draw(windows: list[RunWindow]) -> go.Figure:
    """Draw one point per run: step time and peak. A line joins the Pareto front."""
    drawing = Drawing("run")
    drawing.meta["kind"] = "static"
    seconds = np.array([_step_seconds(window) for window in windows])
    peaks = np.array([_peak(window) for window in windows])
    names = [str(window.run["name"]) for window in windows]
    whole = np.isfinite(seconds) & np.isfinite(peaks)
    incomplete = [name for name, complete in zip(names, whole, strict=True) if not complete]
    if len(incomplete) > MOST_SAID:
        drawing.say(f"{len(incomplete)} of {len(names)} runs: unknown step time or peak")
    else:
        for name in incomplete:
            drawing.say(f"{name}: unknown step time or peak")
    say_bounds(drawing, [window for window, complete in zip(windows, whole, strict=True) if complete])
    if not whole.any():
        return drawing.done()
    unit = byte_unit(float(peaks[whole].max()))
    slow = float(seconds[whole].max()) >= 1
    time = Unit("s", "seconds", 1.0, 2) if slow else Unit("ms", "seconds", 1e-3, 1)
    front = pareto_front(seconds, peaks)
    if int(whole.sum()) > 1:
        drawing.trace(
            seconds[front] / time.divisor,
            peaks[front],
            role="pareto",
            label=_named([names[position] for position in front]),
            unit=unit,
            kind="line",
            hoverinfo="skip",
            hovertemplate=None,
            line={"width": 1.2, "dash": "dot", "shape": "hv"},
        )
    shown = [int(i) for i in np.flatnonzero(whole)]
    named = shown if len(shown) <= MOST_NAMES else sorted({0, *front} & set(shown))
    places = beside([(seconds[i], peaks[i], len(_short(names[i])) if i in named else 0) for i in shown])
    places = [place for i, place in zip(shown, places, strict=True) if i in named]
    where = dict(zip(named, places, strict=True))
    for position in shown:
        name, bound = names[position], at_least(windows[position])
        symbol = "diamond" if position == 0 else "circle"
        drawing.trace(
            seconds[[position]] / time.divisor,
            peaks[[position]],
            role=role_of(position),
            label=f"{name} (baseline)" if position == 0 and len(windows) > 1 else name,
            unit=unit,
            kind="marker",
            mode="markers+text",
            text=[escaped(_short(name)) if where.get(position) else ""],
            textposition=where.get(position) or "top center",
            cliponaxis=False,
            shown=shown_of(position, windows[position].run["run_id"]),
            marker={"size": 13 if position <= COLOURS else 9, "symbol": f"{symbol}-open" if bound else symbol},
            hovertemplate=(
                f"{bound}%{{y:.{unit.decimals}f}} {unit.name} peak, %{{x:.{time.decimals}f}} {time.name} a step"
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
    """Return positions of the runs on the Pareto front (no other is both faster and smaller), from fast to slow.

    seconds, peaks   shape (n,); pairs with a NaN are left out
    """
    front: list[int] = []
    best = np.inf
    for position in np.lexsort((peaks, seconds)):
        if np.isfinite(seconds[position]) and np.isfinite(peaks[position]) and peaks[position] < best:
            front.append(int(position))
            best = peaks[position]
    return front


_PLACES = {
    "top center": (-0.5, 0.2),
    "bottom center": (-0.5, -1.9),
    "middle right": (0.12, -0.95),
    "middle left": (-1.12, -0.95),
}
_LETTER, _LINE = 0.014, 0.07
"""Width of a letter and height of a line, as shares of the chart."""
_MARGIN: Final = 0.06
"""Width of the margin with the numbers of the axis, into which a label may reach."""
_COVERED: Final = 0.05
"""Maximum share of a label that points, other labels and the edge of the chart may cover."""


def beside(points: Sequence[tuple[float, float, int]]) -> list[str]:
    """Place the label of each (x, y, letters) where it covers least of the points and earlier labels.

    Without letters a point has no name, and is only in the way. Empty where no place leaves a label readable: the point shows
    its name on hover.
    """
    if not points:
        return []
    x, y, letters = (np.array(column, float) for column in zip(*points, strict=True))
    low, spread = x.min(), max(float(np.ptp(x)) * 1.3, float(x.max()) * 0.2)
    x, y = 0.12 + (x - low) / spread, y / (y.max() * 1.15)
    boxes = [(a - 0.012, b - 0.03, a + 0.012, b + 0.03) for a, b in zip(x, y, strict=True)]
    chosen = []
    for a, b, wide in zip(x, y, letters * _LETTER, strict=True):
        if not wide:
            chosen.append("")
            continue
        costs = {}
        for place, (left, up) in _PLACES.items():
            start, low_y = a + left * wide, b + up * _LINE + 0.02
            box = (start, low_y, start + wide, low_y + _LINE)
            outside = max(0.0, -_MARGIN - start) + max(0.0, start + wide - 1.0)
            costs[place] = (sum(_overlap(box, other) for other in boxes) + outside * _LINE, box)
        place = min(costs, key=lambda one: costs[one][0])
        if costs[place][0] > _COVERED * wide * _LINE:
            chosen.append("")
            continue
        boxes.append(costs[place][1])
        chosen.append(place)
    return chosen


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _named(front: list[str]) -> str:
    """Name the runs of the Pareto front."""
    letters = ", ".join(map(_short, front))
    return f"Pareto front: {letters if len(letters) <= MOST_LETTERS else f'{len(front)} runs'}"


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:22]}…"


def _step_seconds(window: RunWindow) -> float:
    """Return the run's median step time, or the mean over the window if the row lacks it."""
    median = window.run.get("step_seconds_median")
    if median is not None:
        return float(median)
    durations = window.steps.columns["duration_ns"].mean
    return float(np.nanmean(durations)) * 1e-9 if known(durations) else float("nan")


def _peak(window: RunWindow) -> float:
    peaks = window.steps.columns["peak_allocated_bytes"].max
    return float(np.nanmax(peaks)) if known(peaks) else float("nan")
