"""Reads one window of a run, thinned, for figures and series. Blocks; run it in a thread."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from fastapi import Query, Request
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.series.chart_data import DamagedRows, LossWindow, RunWindow, SeriesColumn, StreamWindow
from vramscope_server.analysis.series.downsample import Buckets, at_peak, divide, envelope, float_envelope, with_holes
from vramscope_server.analysis.series.trend import trend
from vramscope_server.api.problems import InvalidParameter, NotFound
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.list_row import run_row
from vramscope_server.store.other_processes import names_of_series
from vramscope_server.store.project_scope import scoped
from vramscope_server.store.run_queries import UnknownRun, find_run, scalars_of_rank
from vramscope_server.store.scalars import SCALARS, loss_name, numbers
from vramscope_server.store.series_reader import (
    Damage,
    RankDevice,
    UnknownRankDevice,
    find_rank_device,
    floats,
    load_columns,
)
from vramscope_server.store.stored_rows import StoredRun

if TYPE_CHECKING:
    from vramscope_server.figures.registry import Figure

Axis = Literal["time", "step"]

SINCE_1970: Final = 1e8
"""A time above it (three years) counts from 1970, one below from the run's start."""

MOST_METRICS: Final = 6
"""Maximum number of metrics in one figure."""

Rank = Annotated[int | None, Query(ge=0, description="Number of the rank; by default the lowest.")]
DeviceIndex = Annotated[int | None, Query(ge=-1, description="Index of the device; by default the rank's first.")]
AxisName = Annotated[Axis, Query(description="Axis.")]
From = Annotated[
    float | None,
    Query(
        alias="from",
        allow_inf_nan=False,
        description="Start of the window: seconds since the run's start or since 1970, or a step.",
    ),
]
To = Annotated[float | None, Query(allow_inf_nan=False, description="End of the window, included.")]
Points = Annotated[int, Query(ge=10, le=4000, description="Maximum number of points.")]


@dataclass(frozen=True, slots=True)
class RequestedRange:
    """A requested window. ``first`` and ``last`` in units of the axis; None is open."""

    x: Axis
    first: float | None
    last: float | None
    points: int

    def bounds(self, run: StoredRun, place: RankDevice) -> tuple[int | None, int | None]:
        """Bounds as they are stored: nanoseconds by the sender's clock, or steps."""
        return self._bound(self.first, run, place, math.floor), self._bound(self.last, run, place, math.ceil)

    def _bound(
        self, value: float | None, run: StoredRun, place: RankDevice, rounded: Callable[[float], int]
    ) -> int | None:
        if value is None:
            return None
        if self.x == "step":
            return rounded(min(max(value, -2.0), 2.0**62))
        # In whole numbers: a float is too coarse for nanoseconds since 1970.
        zero_ns = 0 if value >= SINCE_1970 else int(run.started_ns)
        after_ns = rounded(min(max(value, -4e9), 4e9) * 1e9)
        return zero_ns + place.skew_ns + after_ns


def require_run(connection: Connection, text: str) -> StoredRun:
    """Run of a request. Raises NotFound with suggestions."""
    try:
        return find_run(connection, text)
    except UnknownRun as unknown:
        raise NotFound(str(unknown), field="run", seen=text[:200], suggestions=unknown.suggestions) from None


def require_rank_device(connection: Connection, run: StoredRun, rank: int | None, device: int | None) -> RankDevice:
    """Rank and device of a request. Raises NotFound."""
    try:
        return find_rank_device(connection, run, rank, device)
    except UnknownRankDevice as unknown:
        field, seen, expected = unknown.args
        raise NotFound(
            f"The run has no {field} {seen}; expected {expected}.",
            field=field,
            seen=seen,
            expected=expected,
            suggestions=[],
        ) from None


def checked_range(x: Axis, first: float | None, last: float | None, points: int) -> RequestedRange:
    """Window of a request. Raises InvalidParameter."""
    if first is not None and last is not None and last < first:
        raise InvalidParameter(f"from is {first}, to is {last}.", field="to", seen=last, expected=f"at least {first}")
    return RequestedRange(x, first, last, points)


@dataclass(frozen=True, slots=True)
class Thinned:
    """Columns in a window: all rows (``buckets`` is None), or divided."""

    columns: dict[str, IntArray]
    along: IntArray
    buckets: Buckets | None
    damaged: list[Damage]

    @property
    def rows(self) -> int:
        """Number of rows before thinning."""
        return self.along.size


def load(
    connection: Connection,
    run: StoredRun,
    place: RankDevice,
    stream: str,
    names: Sequence[str],
    window: RequestedRange,
    *,
    since_ns: int | None = None,
) -> Thinned:
    """Read columns and divide them if there are more rows than points. ``since_ns``: only rows from this time on."""
    first, last = window.bounds(run, place)
    found = load_columns(connection, run, place, stream, names, x=window.x, first=first, last=last, since_ns=since_ns)
    along = found.columns["time_ns" if window.x == "time" else "step"]
    buckets = divide(along, window.points) if along.size > window.points else None
    return Thinned(found.columns, along, buckets, found.damaged)


def damage_rows(damaged: Sequence[Damage], place: RankDevice) -> list[DamagedRows]:
    """Rows that cannot be read, as answers have them; times by the server's clock."""
    return [
        {
            "rows": part.rows,
            "first_seconds": (part.first_time_ns - place.skew_ns) / 1e9,
            "last_seconds": (part.last_time_ns - place.skew_ns) / 1e9,
            "first_step": None if part.first_step == series.UNKNOWN else part.first_step,
            "last_step": None if part.last_step == series.UNKNOWN else part.last_step,
        }
        for part in damaged
    ]


def axis_seconds(along_ns: npt.NDArray[Any], place: RankDevice, zero_ns: int) -> FloatArray:
    """Stored nanoseconds to seconds after ``zero_ns``, by the server's clock."""
    seconds: FloatArray = (along_ns - (zero_ns + place.skew_ns)) / 1e9
    return seconds


def run_window(
    connection: Connection,
    run: StoredRun,
    place: RankDevice,
    figure: Figure[Any],
    window: RequestedRange,
) -> RunWindow:
    """Read the data that a figure draws of a run."""
    points = window.points
    if figure.every_row:
        window = dataclasses.replace(window, points=sys.maxsize)
    since_ns = place.started_ns if figure.newest_session else None
    total, parts = figure.at_peak or ("", ())
    streams = {}
    line = None
    for stream, names in figure.needs.items():
        stacked = [total, *parts] if total in series.STREAMS[stream] and total in names else []
        thinned = load(connection, run, place, stream, [*names, *stacked], window, since_ns=since_ns)
        if stream == "steps" and figure.trend is not None:
            along = axis_seconds(thinned.along, place, int(run.started_ns)) if window.x == "time" else thinned.along
            values = floats(thinned.columns[figure.trend])
            line = trend(along.astype(np.float64), values, on_host=place.device == series.CPU)
        streams[stream] = _stream_window(stream, thinned, names, stacked, place, int(run.started_ns), window.x)
    logged = []
    if figure.metrics:
        logged = [one for one in scalars_of_rank(connection, run, place.rank) if one not in series.LOSSES]
    return RunWindow(
        run=run_row(run),
        rank=place.rank,
        device=place.device,
        x=window.x,
        x0_seconds=run.started_ns / 1e9,
        streams=streams,
        trend=line,
        loss=loss_window(connection, run, place, window) if figure.loss else None,
        metrics=[_scalar_window(connection, run, place, window, name) for name in logged[:MOST_METRICS]],
        metrics_left_out=max(0, len(logged) - MOST_METRICS),
        points=points,
        has_end=window.last is not None,
        skew_ns=place.skew_ns,
        process_names=names_of_series(connection, run, place.rank, place.device) if figure.processes else {},
    )


def loss_window(connection: Connection, run: StoredRun, place: RankDevice, window: RequestedRange) -> LossWindow | None:
    """Loss of a rank in a window, thinned; None if it reports none."""
    name = loss_name(scalars_of_rank(connection, run, place.rank))
    return None if name is None else _scalar_window(connection, run, place, window, name)


def _scalar_window(
    connection: Connection, run: StoredRun, place: RankDevice, window: RequestedRange, name: str
) -> LossWindow:
    """Return one number that a rank logs."""
    first, last = window.bounds(run, place)
    found = load_columns(connection, run, place, SCALARS, [name, "step"], x=window.x, first=first, last=last)
    values, known = numbers(found.columns[name])
    values, along = values[known], found.columns["time_ns" if window.x == "time" else "step"][known]
    x_values = _axis(along, run, place, window.x)
    odd = np.flatnonzero(~np.isfinite(values))
    not_finite = None
    if odd.size:
        at = odd[0]
        not_finite = (float(x_values[at]), int(found.columns["step"][known][at]), float(values[at]))
    finite = np.where(np.isfinite(values), values, np.nan)
    column = SeriesColumn(finite, finite, finite)
    envelope_ = along.size > window.points
    if envelope_:
        buckets = divide(along, window.points)
        three = (with_holes(part, buckets, np.nan) for part in float_envelope(values, buckets.starts))
        column = SeriesColumn(*three)  # type: ignore[arg-type]
        x_values = _axis(buckets.middle, run, place, window.x)
    return LossWindow(
        name=name,
        x_values=x_values,
        envelope=envelope_,
        rows=along.size,
        values=column,
        not_finite=not_finite,
        odd=odd.size,
        damaged=damage_rows(found.damaged, place),
    )


def _axis(along: npt.NDArray[Any], run: StoredRun, place: RankDevice, x: Axis) -> FloatArray:
    return axis_seconds(along, place, int(run.started_ns)) if x == "time" else along.astype(np.float64)


def _stream_window(
    stream: Any, thinned: Thinned, names: Sequence[str], stacked: list[str], place: RankDevice, zero_ns: int, x: Axis
) -> StreamWindow:
    buckets = thinned.buckets
    along = thinned.along if buckets is None else buckets.middle
    columns = {}
    peak: dict[str, FloatArray] = {}
    if buckets is None:
        for name in names:
            values = floats(thinned.columns[name])
            columns[name] = SeriesColumn(values, values, values)
        peak = {name: columns[name].max if name in columns else floats(thinned.columns[name]) for name in stacked}
    else:
        for name in names:
            found = envelope(thinned.columns[name], buckets.starts)
            three = (with_holes(floats(part), buckets, np.nan) for part in (found.min, found.mean, found.max))
            columns[name] = SeriesColumn(*three)  # type: ignore[arg-type]
        if stacked:
            rows = at_peak(
                thinned.columns[stacked[0]], {name: thinned.columns[name] for name in stacked}, buckets.starts
            )
            peak = {name: with_holes(floats(values), buckets, np.nan) for name, values in rows.items()}  # type: ignore[misc]
    return StreamWindow(
        stream=stream,
        x_values=axis_seconds(along, place, zero_ns) if x == "time" else along.astype(np.float64),
        envelope=buckets is not None,
        rows=thinned.rows,
        columns=columns,
        at_peak=peak,
        all_rows={} if buckets is None else thinned.columns,
        damaged=damage_rows(thinned.damaged, place),
    )


@contextlib.contextmanager
def reader(request: Request) -> Iterator[Connection]:
    """A reading connection that finds only what the caller may see. The routes have no other."""
    services: Services = request.app.state.services
    with services.database.reader() as connection:
        yield scoped(connection, caller_of(request).scope)
