"""What a figure is built from: the thinned rows of one run, in one window, for one rank and device.

The route (``api/figures.py``) fills a :class:`RunWindow` with what the figure needs (``figures/registry.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.series.trend import Trend

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SeriesColumn:
    """One series in the window: three arrays of equal length, NaN where nothing is known.

    Of rows that were not thinned, all three are the same array.
    """

    min: FloatArray
    mean: FloatArray
    max: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWindow:
    """The rows of one stream in the window.

    x_values   seconds since the run's start (``RunWindow.x0_seconds``), or step numbers; of buckets: their middle
    envelope   True: each value stands for a bucket of rows. False: the rows as they came
    rows       rows in the window before thinning
    columns    name -> :class:`SeriesColumn`, for each column that the figure needs; one that was never sent is all NaN
    at_peak    name -> values in the row of each bucket where the total was highest: the total and the parts of
               ``Figure.at_peak``; empty where the figure has none, or for the other stream
    damaged    rows of the window that cannot be read and are left out: ``rows``, ``first_step``, ``last_step``,
               ``first_seconds``, ``last_seconds``
    """

    stream: Literal["samples", "steps"]
    x_values: FloatArray
    envelope: bool
    rows: int
    columns: dict[str, SeriesColumn]
    at_peak: dict[str, FloatArray] = field(default_factory=dict)
    damaged: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWindow:
    """A rank's loss in the window.

    name        which of series.LOSSES it is
    x_values    as of :class:`StreamWindow`
    envelope    True: each value stands for a bucket of rows
    rows        rows in the window before thinning
    values      NaN where it was not a finite number
    not_finite  (x, step, value) of the first row that was NaN or infinite
    odd         how many rows were
    damaged     rows that cannot be read, as of :class:`StreamWindow`
    """

    name: str
    x_values: FloatArray
    envelope: bool
    rows: int
    values: SeriesColumn
    not_finite: tuple[float, int, float] | None
    odd: int
    damaged: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWindow:
    """One run, as a figure sees it.

    run         the row of the runs list (docs/http.md): ``name``, ``device``, ``capacity_bytes``, ...
    rank        which process
    device      which device of it; -1 is the CPU
    x           what the x axis is
    x0_seconds  the run's start since 1970: zero of a time axis
    streams     "samples" and "steps", as far as the figure needs them
    loss        None: the rank tells none, or it was not asked for
    trend       the line through the column ``Figure.trend``; None without it, and where too few rows are known
    """

    run: dict[str, Any]
    rank: int
    device: int
    x: Literal["time", "step"]
    x0_seconds: float
    streams: dict[str, StreamWindow]
    trend: Trend | None = None
    loss: LossWindow | None = None

    @property
    def samples(self) -> StreamWindow:
        """The rows of the sampler. Raises KeyError if the figure needs no ``samples``."""
        return self.streams["samples"]

    @property
    def steps(self) -> StreamWindow:
        """One row an optimizer step. Raises KeyError if the figure needs no ``steps``."""
        return self.streams["steps"]
