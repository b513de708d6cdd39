"""One Plotly figure a file, built once in Python: page, notebook and report draw the same.

Each module has ``NEEDS`` (stream -> columns) and ``draw``; for a stacked composition ``AT_PEAK``; where only the newest
process counts, ``NEWEST_SESSION``; where a line is fitted, ``TREND``; for the loss,
``LOSS``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import plotly.graph_objects as go

from vramscope_server.analysis.series.window import RunWindow
from vramscope_server.figures import (
    categories,
    device,
    floor,
    fragmentation,
    host,
    loss,
    loss_over_steps,
    memory,
    memory_against_time,
    peaks_over_steps,
    peaks_side_by_side,
    phases,
    step_peaks,
    utilization,
)

MODULES: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        categories,
        memory,
        fragmentation,
        device,
        step_peaks,
        phases,
        utilization,
        host,
        floor,
        loss,
        peaks_over_steps,
        peaks_side_by_side,
        memory_against_time,
        loss_over_steps,
    )
}
"""Name of a figure -> its module, which holds ``NEEDS``, ``AT_PEAK``, ``NEWEST_SESSION``, ``TREND`` and ``LOSS``."""

RUN_FIGURES: dict[str, Callable[[RunWindow], go.Figure]] = {
    "categories": categories.draw,
    "memory": memory.draw,
    "fragmentation": fragmentation.draw,
    "device": device.draw,
    "step_peaks": step_peaks.draw,
    "phases": phases.draw,
    "utilization": utilization.draw,
    "host": host.draw,
    "floor": floor.draw,
    "loss": loss.draw,
}
COMPARE_FIGURES: dict[str, Callable[[list[RunWindow]], go.Figure]] = {
    "peaks_over_steps": peaks_over_steps.draw,
    "peaks_side_by_side": peaks_side_by_side.draw,
    "memory_against_time": memory_against_time.draw,
    "loss_over_steps": loss_over_steps.draw,
}

__all__ = ["COMPARE_FIGURES", "MODULES", "RUN_FIGURES"]
