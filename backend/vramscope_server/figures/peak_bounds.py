"""Marks of peaks that are lower bounds, in figures of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramscope_server.analysis.peak_bound import PeakBound, peak_bound
from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.drawing import Drawing

MOST_SAID: Final = 4
"""Maximum number of runs that a figure's note names."""
REASONS: Final = {"sampled": "a rank has samples alone", "lower bound": "other code reset the peak counters"}


def bound_of(window: RunWindow) -> PeakBound:
    """Return the allocated peak of a window's run."""
    return peak_bound(window.run, "peak_allocated")


def say_bounds(drawing: Drawing, windows: Sequence[RunWindow]) -> None:
    """Note the runs whose peak is a lower bound. ``windows``: those that are drawn."""
    bounds = [(str(window.run["name"]), bound_of(window)) for window in windows]
    found = [(name, bound) for name, bound in bounds if bound.is_lower]
    if len(found) > MOST_SAID:
        drawing.say(f"≥ {len(found)} of {len(windows)} runs: the peak may be higher")
        return
    for name, bound in found:
        drawing.say(f"≥ {name}: the peak may be higher, because {REASONS[bound.why]}")


def at_least(window: RunWindow) -> str:
    """Return the mark before a value of this run's peak: ``≥ ``, or nothing."""
    return "≥ " if bound_of(window).is_lower else ""
