"""Data of a figure: downsampled rows of one run, in one window, for one rank and device.

The route (``api/figures.py``) fills a :class:`RunWindow` with what the figure needs (``figures/registry.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.series.trend import Trend


class DamagedRows(TypedDict):
    """Rows that cannot be read; times are seconds since 1970 by the server's clock."""

    rows: int
    first_seconds: float
    last_seconds: float
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, slots=True)
class SeriesColumn:
    """One series in the window: three arrays of equal length, NaN if unknown.

    Without downsampling all three are the same array.
    """

    min: FloatArray
    mean: FloatArray
    max: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWindow:
    """Rows of one stream in the window.

    x_values   seconds since the run's start (``RunWindow.x0_seconds``), or step numbers; for buckets their middle
    envelope   True: each value is that of a bucket of rows. False: original rows
    rows       rows in the window before downsampling
    columns    name -> :class:`SeriesColumn`, for each column that the figure needs; a column that was never sent is all NaN
    at_peak    name -> values in the row of each bucket where the total was highest: the total and the parts of
               ``Figure.at_peak``; empty if the figure has none, and for the other stream
    all_rows   name -> all ``rows`` values as the wire has them, before downsampling; empty without downsampling
    damaged    unreadable rows of the window, which are omitted
    """

    stream: Literal["samples", "steps"]
    x_values: FloatArray
    envelope: bool
    rows: int
    columns: dict[str, SeriesColumn]
    at_peak: dict[str, FloatArray] = field(default_factory=dict)
    all_rows: Mapping[str, IntArray] = field(default_factory=dict)
    damaged: list[DamagedRows] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWindow:
    """Loss of a rank in the window, or another number that its training logs.

    name        a member of series.LOSSES, or the name of the number
    x_values    as in :class:`StreamWindow`
    envelope    True: each value is that of a bucket of rows
    rows        rows in the window before downsampling
    values      NaN if it was not finite
    not_finite  (x, step, value) of the first NaN or infinite row
    odd         number of such rows
    damaged     unreadable rows, as in :class:`StreamWindow`
    """

    name: str
    x_values: FloatArray
    envelope: bool
    rows: int
    values: SeriesColumn
    not_finite: tuple[float, int, float] | None
    odd: int
    damaged: list[DamagedRows] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindow:
    """Data of one run for a figure.

    run         the row of the runs list (docs/http.md): ``name``, ``device``, ``capacity_bytes``, ...
    rank        number of the process
    device      device of the process; -1 is the CPU
    x           kind of the x axis
    x0_seconds  start of the run in seconds since 1970, the zero of a time axis
    streams     "samples" and "steps", as far as the figure needs them
    loss        None if the rank has none, or the figure needs none
    metrics     other numbers that the training logs; empty if the figure needs none
    metrics_left_out   number of metrics that are not among them
    points      maximum number of points that the request asks for
    has_end     True if the request limits the window at its end
    skew_ns     clock of the sender minus the server's clock
    process_names   other processes by the series of samples that they have
    trend       the line through the column ``Figure.trend``; None without it, and where too few rows are known
    """

    run: Mapping[str, Any]
    rank: int
    device: int
    x: Literal["time", "step"]
    x0_seconds: float
    streams: dict[str, StreamWindow]
    trend: Trend | None = None
    loss: LossWindow | None = None
    metrics: list[LossWindow] = field(default_factory=list)
    metrics_left_out: int = 0
    points: int = 800
    has_end: bool = False
    skew_ns: int = 0
    process_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def zero_ns(self) -> float:
        """Zero of a time axis in nanoseconds, by the sender's clock, as in the columns."""
        return self.x0_seconds * 1e9 + self.skew_ns

    @property
    def samples(self) -> StreamWindow:
        """Rows of the sampler. Raises KeyError if the figure needs no ``samples``."""
        return self.streams["samples"]

    @property
    def steps(self) -> StreamWindow:
        """One row per optimizer step. Raises KeyError if the figure needs no ``steps``."""
        return self.streams["steps"]
