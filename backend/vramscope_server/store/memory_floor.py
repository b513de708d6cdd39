"""Memory after each step of one device: its trend, and when the device is full at this rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.leaks.verdict_text import fits_when_full, is_steady
from vramscope_server.analysis.series.trend import Trend, models_slope, trend, until_full, work_grows
from vramscope_server.store.list_row import seconds
from vramscope_server.store.series_reader import Damage, RankDevice, floats, load_columns
from vramscope_server.store.stored_rows import StoredRun

_RECENT: Final = 0.1
"""Share of the steps whose highest peak counts as the peak of now."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the device is full at this rate; None is unknown, or never."""

    steps: float | None = None
    steps_at_least: float | None = None
    """The same at the upper end of the slope."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryFloor:
    """Trend of the memory after each step, and the forecast."""

    fit: Trend | None
    peaks: Trend | None
    """Trend of the highest allocated memory of each step, if memory rises because the steps grow; else None."""
    damaged: list[Damage]
    outside_bytes: int | None
    """Memory of the device that is not PyTorch's, by its newest sample: CUDA's context, libraries, other processes."""
    room_bytes: int | None
    forecast: Forecast


def memory_floor(
    connection: Connection,
    run: StoredRun,
    place: RankDevice,
    leaks: Sequence[Mapping[str, Any]],
    first: int | None = None,
    last: int | None = None,
) -> MemoryFloor:
    """The floor in a window of steps. There is no forecast for a run that ended, or where the growth has another end.

    leaks   merged leaks of the run: growth that is bounded and fits does not fill the device
    """
    floor, damaged = _steps(connection, run, place, ["after_step_bytes"], first, last)
    fit = trend(floor["step"], floor["after_step_bytes"], on_host=place.device == series.CPU)
    tops, _ = _steps(connection, run, place, ["peak_allocated_bytes"], first, last)
    peaks = trend(tops["step"], tops["peak_allocated_bytes"])
    grows = any(not (leak["on_host"] or leak["note"] or is_steady(leak)) for leak in leaks)
    lives_on = sum(
        leak["exclusive_bytes"] for leak in leaks if leak["kind"] in series.OVERLAPS and place.rank in leak["ranks"]
    )
    if fit is None or peaks is None or grows or not work_grows(fit, peaks, lives_on):
        peaks = None
    outside = _outside_bytes(connection, run, place)
    used = _used_bytes(connection, run, place)
    # What is outside is not known without NVML: then the room is too large by CUDA's context, some 500 MiB.
    unknown = place.capacity_bytes is None or used is None
    room = None if unknown else place.capacity_bytes - used - (outside or 0)  # type: ignore[operator]
    return MemoryFloor(fit, peaks, damaged, outside, room, _forecast(run, fit, room, leaks, peaks))


def _forecast(
    run: StoredRun, fit: Trend | None, room: int | None, leaks: Sequence[Mapping[str, Any]], peaks: Trend | None
) -> Forecast:
    if run.state != "running" or peaks is not None or fits_when_full(leaks, room):
        return Forecast()
    steps_left, soonest = until_full(fit, room)
    step_seconds = seconds(run.step_median_ns)
    known = steps_left is not None and step_seconds is not None
    return Forecast(steps_left, soonest, steps_left * step_seconds if known else None)  # type: ignore[operator]


def growth_of_models(connection: Connection, run: StoredRun, place: RankDevice, fit: Trend | None) -> float | None:
    """Bytes per step that parameters, gradients, buffers and optimizer state grow by, if they are what the floor rises by."""
    if fit is None:
        return None
    names = [f"end_{category}_bytes" for category in ("parameters", "gradients", "buffers", "optimizer")]
    columns, _ = _steps(connection, run, place, [*names, "after_step_bytes"], int(fit.first), int(fit.last))
    models: FloatArray = np.sum([columns[name] for name in names], axis=0)
    return models_slope(columns["step"], models, columns["after_step_bytes"], fit.last - fit.first)


def _steps(
    connection: Connection,
    run: StoredRun,
    place: RankDevice,
    names: Sequence[str],
    first: int | None,
    last: int | None,
) -> tuple[dict[str, FloatArray], list[Damage]]:
    columns, damaged = _newest(connection, run, place, "steps", names, first, last)
    return {name: floats(values) for name, values in columns.items()}, damaged


def _newest(
    connection: Connection,
    run: StoredRun,
    place: RankDevice,
    stream: Literal["steps", "samples"],
    names: Sequence[str],
    first: int | None,
    last: int | None = None,
) -> tuple[dict[str, IntArray], list[Damage]]:
    """Columns by step, of the newest session of the rank."""
    loaded = load_columns(
        connection, run, place, stream, names, x="step", first=first, last=last, since_ns=place.started_ns
    )
    return loaded.columns, loaded.damaged


def _used_bytes(connection: Connection, run: StoredRun, place: RankDevice) -> int | None:
    """What the newest steps need at their peak, whatever window is shown; where that is not known, at their floor."""
    names = ("peak_allocated_bytes", "after_step_bytes")
    first = round((run.last_step or 0) * (1 - _RECENT))
    columns, _ = _newest(connection, run, place, "steps", names, first)
    tops = (int(columns[name].max(initial=series.UNKNOWN)) for name in names)
    return next((top for top in tops if top != series.UNKNOWN), None)


def _outside_bytes(connection: Connection, run: StoredRun, place: RankDevice) -> int | None:
    names = ("device_used_bytes", "reserved_bytes")
    for first in (round((run.last_step or 0) * (1 - _RECENT)), None):
        columns, _ = _newest(connection, run, place, "samples", names, first)
        used, reserved = (columns[name] for name in names)
        known = np.flatnonzero((used != series.UNKNOWN) & (reserved != series.UNKNOWN))
        if len(known):
            return max(0, int(used[known[-1]] - reserved[known[-1]]))
    return None
