"""Steps, series and the figures of a run."""

from __future__ import annotations

from typing_extensions import TypedDict

from vramscope_server.answers.run_detail import CategoryMemory
from vramscope_server.answers.shared_parts import AxisWindow, Damage, PlotlyFigure


class StepPhase(TypedDict):
    """A phase of a step."""

    peak_allocated_bytes: int | None
    """Highest allocated memory in the phase."""
    peak_reserved_bytes: int | None
    """Highest reserved memory in the phase."""
    seconds: float | None
    """Duration of the phase."""


class Step(TypedDict):
    """An optimizer step of a rank, on one device."""

    step: int | None
    """Number of the step, from 1; of a group the last."""
    first_step: int | None
    """First step of the group. Lower than `step` where the agent read the peaks once for several short steps."""
    time_seconds: float | None
    """End of the step, since 1970."""
    seconds: float | None
    """Duration of the step; in a group the mean."""
    peak_allocated_bytes: int | None
    """Highest allocated memory in the step, or in the group: exact."""
    peak_reserved_bytes: int | None
    """Highest reserved memory in the step."""
    peak_phase: str | None
    """Phase with the highest allocated memory."""
    peak_categories: CategoryMemory
    """Allocated memory at that peak, by category."""
    end_allocated_bytes: int | None
    """Allocated memory at the end of the step."""
    end_reserved_bytes: int | None
    """Reserved memory at the end of the step."""
    end_categories: CategoryMemory
    """Allocated memory at the end of the step, by category."""
    phases: dict[str, StepPhase]
    """Phases by name; a phase without known values is left out."""
    micro_steps: int | None
    """Number of backward passes in the step."""
    watched: bool | None
    """Whether the agent read the phases; it leaves steps unwatched to measure its own cost, and to keep it low."""
    agent_seconds: float | None
    """Time that the agent's hooks took in the step."""
    foreign_reset: int | None
    """Resets of the peak counters by other code: 0 none, 1 the peak is exact nevertheless, 2 the peak is a lower bound."""


class SeriesAnswer(TypedDict):
    """Columns of a window: all values, or an envelope if there are more rows than points."""

    stream: str
    """`samples`, `steps` or `scalars`."""
    rank: int
    """Number of the rank."""
    device: int
    """Index of the device; -1 is the CPU."""
    x: str
    """Axis: `time` or `step`."""
    x_values: list[float]
    """Seconds since 1970 or step numbers; of an envelope the middle of each bucket."""
    rows: int
    """Number of rows in the window before thinning."""
    envelope: bool
    """Whether the values are an envelope."""
    window: AxisWindow
    """AxisWindow of the window."""
    damaged: list[Damage]
    """Rows that cannot be read."""
    series: dict[str, dict[str, list[int | float | str | None]]]
    """By name, the values as `value`, or the envelope as `min`, `mean` and `max`; scalars that are not finite are `"nan"`,
    `"inf"` or `"-inf"`."""


class _FigureWindow(TypedDict):
    rank: int
    """Number of the rank."""
    device: int
    """Index of the device; -1 is the CPU."""
    x: str
    """Axis: `time` or `step`."""
    rows: dict[str, int]
    """Number of rows before thinning, by stream."""
    envelope: dict[str, bool]
    """Whether the values are an envelope, by stream."""
    damaged: dict[str, list[Damage]]
    """Rows that cannot be read, by stream."""


class FigureWindow(_FigureWindow, AxisWindow):
    """What a figure of a run shows."""


class RunFigure(TypedDict):
    """A figure of a run."""

    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    window: FigureWindow
    """What the figure shows."""


class ComparedWindow(FigureWindow):
    """What a figure of several runs shows of one of them."""

    run: str
    """Identifier of the run."""


class _CompareWindow(TypedDict):
    x: str
    """Axis: `time` or `step`."""
    runs: list[ComparedWindow]
    """What is shown of each run, baseline first."""


class CompareWindow(_CompareWindow, AxisWindow):
    """What a figure of several runs shows."""


class CompareFigure(TypedDict):
    """A figure of several runs."""

    figure: PlotlyFigure
    """Plotly figure without template and theme colours."""
    window: CompareWindow
    """What the figure shows."""
