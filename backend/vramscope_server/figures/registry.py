"""All figures of runs, by name, with the data that each one draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures import (
    fragmentation,
    host_memory,
    loss,
    loss_over_steps,
    memory_after_step,
    memory_against_time,
    memory_stack,
    metrics,
    peaks_over_steps,
    peaks_side_by_side,
    phases,
    processes,
    utilization,
)

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Figure(Generic[Shown]):
    """A figure: how it is drawn, and which columns it needs. The x axis, time or step, is never listed."""

    name: str
    draw: Callable[[Shown], Any]
    """Returns a ``plotly.graph_objects.Figure``."""
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns by stream: ``samples`` and ``steps``."""
    at_peak: tuple[str, Sequence[str]] | None = None
    """(total, parts) of a stack: in each bucket the parts are those of the row with the highest total, so that the stack adds
    up and no peak is lost."""
    newest_session: bool = False
    """Draw only rows of the rank's newest process."""
    trend: str | None = None
    """Column of ``steps`` through which a line is fitted before rows are thinned."""
    loss: bool = False
    """Draw the rank's loss."""
    metrics: bool = False
    """Draw the other numbers that the rank logs."""
    processes: bool = False
    """Name the other processes on the device."""
    every_row: bool = False
    """Draw from all rows of the window, however many: for figures whose size does not depend on them."""


RUN_FIGURES: Final[dict[str, Figure[RunWindow]]] = {
    figure.name: figure
    for figure in (
        Figure("stack", memory_stack.draw, memory_stack.NEEDS, every_row=True),
        Figure("fragmentation", fragmentation.draw, fragmentation.NEEDS, at_peak=fragmentation.AT_PEAK),
        Figure("phases", phases.draw, phases.NEEDS, every_row=True),
        Figure("utilization", utilization.draw, utilization.NEEDS),
        Figure("processes", processes.draw, processes.NEEDS, processes=True),
        Figure("host", host_memory.draw, host_memory.NEEDS),
        Figure("floor", memory_after_step.draw, memory_after_step.NEEDS, newest_session=True, trend="after_step_bytes"),
        Figure("loss", loss.draw, loss=True),
        Figure("metrics", metrics.draw, metrics=True),
    )
}
"""Figures of one run."""

COMPARE_FIGURES: Final[dict[str, Figure[list[RunWindow]]]] = {
    figure.name: figure
    for figure in (
        Figure("peaks_over_steps", peaks_over_steps.draw, peaks_over_steps.NEEDS),
        Figure(
            "peaks_side_by_side",
            peaks_side_by_side.draw,
            peaks_side_by_side.NEEDS,
            at_peak=peaks_side_by_side.AT_PEAK,
        ),
        Figure("memory_against_time", memory_against_time.draw, memory_against_time.NEEDS),
        Figure("loss_over_steps", loss_over_steps.draw, loss=True),
    )
}
"""Figures of several runs, the baseline first."""
