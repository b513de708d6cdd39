"""``GET /runs/RUN/peak``: what the peak of a device was made of."""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
from fastapi import APIRouter, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.memory_stack import (
    PARTS,
    READING_HOLDS_S,
    SAMPLE_COLUMNS,
    STEP_COLUMNS,
    Level,
    detailed_row,
    level_totals,
    part_sizes,
    peak_row,
    stack_rows,
)
from vramscope_server.answers.peak import PeakLevel, PeakMemory, PeakPart
from vramscope_server.api.requested_range import (
    DeviceIndex,
    Rank,
    RequestedRange,
    load,
    reader,
    require_rank_device,
    require_run,
)
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.store.series_reader import RankDevice, floats
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["runs"])

_LEVELS: Final[tuple[Level, ...]] = ("card", "reserved", "allocated")
_AROUND_S: Final = 60.0
"""Time before the peak's step from which samples are read: a slow driver is read less often than the allocator."""
_LOWER_BOUND: Final = 2
"""Code of ``foreign_reset`` for a step whose peak is a lower bound."""


@router.get("/runs/{run}/peak", summary="Memory at the peak of a run", responses=answers_with(PeakMemory))
def get_peak(request: Request, run: str, rank: Rank = None, device: DeviceIndex = None) -> Response:
    """Memory of one device in the step with the highest allocated memory, from the card to the categories. Each level has
    its highest value in that step, so a level may be highest at another time of the step than the next.
    """
    with reader(request) as connection:
        record = require_run(connection, run)
        place = require_rank_device(connection, record, rank, device)
        return answer(_peak_memory(connection, record, place))


def _peak_memory(connection: Connection, run: StoredRun, place: RankDevice) -> PeakMemory:
    found: PeakMemory = {
        "run_id": run.id,
        "rank": place.rank,
        "device": place.device,
        "step": None,
        "first_step": None,
        "phase": None,
        "finished": False,
        "lower_bound": False,
        "capacity_bytes": place.capacity_bytes,
        "levels": [],
        "nearest_detailed": None,
    }
    window = _window_of_peak(connection, run, place)
    if window is None:
        return found
    steps = _columns(connection, run, place, "steps", [*STEP_COLUMNS, "peak_phase"], window)
    samples = _columns(connection, run, place, "samples", [*SAMPLE_COLUMNS, "phase"], window)
    rows = stack_rows(steps, samples, "time")
    at = peak_row(rows)
    if at is None:
        return found
    every = part_sizes(rows)
    sizes = {role: values[at] for role, values in every.items()}
    totals = {level: values[at] for level, values in level_totals(rows, every).items()}
    finished = bool(rows.finished[at])
    of, name = (steps, "peak_phase") if finished else (samples, "phase")
    here = np.flatnonzero(of["time_ns"] == rows.along[at])
    phase = of[name][here[0]] if here.size else np.nan
    found["step"] = _whole(rows.step[at])
    found["first_step"] = _whole(rows.first_step[at])
    found["phase"] = series.phase_name(int(phase)) if np.isfinite(phase) else None
    found["finished"] = finished
    found["lower_bound"] = bool(rows.reset[at] == _LOWER_BOUND)
    found["levels"] = [_level(level, sizes, float(totals[level])) for level in _LEVELS]
    detailed = detailed_row(rows, at)
    if sizes["unsplit"] > 0 and detailed is not None and detailed != at:
        allocated = _level("allocated", {role: values[detailed] for role, values in every.items()}, 0.0)
        found["nearest_detailed"] = {
            "step": int(rows.step[detailed]),
            "allocated_bytes": int(rows.allocated[detailed]),
            "parts": allocated["parts"],
        }
    return found


def _window_of_peak(connection: Connection, run: StoredRun, place: RankDevice) -> RequestedRange | None:
    """Return the window around the step, or the later sample, with the highest allocated memory. None if none is known."""
    everything = RequestedRange("time", None, None, sys.maxsize)
    steps = _columns(connection, run, place, "steps", ["time_ns", "peak_allocated_bytes"], everything)
    last = float(steps["time_ns"][-1]) if steps["time_ns"].size else None
    zero = run.started_ns + place.skew_ns
    behind = RequestedRange("time", None if last is None else (last - zero) / 1e9, None, sys.maxsize)
    samples = _columns(connection, run, place, "samples", ["time_ns", "allocated_bytes"], behind)
    candidates: list[tuple[float, float, float]] = []
    for columns, name in ((steps, "peak_allocated_bytes"), (samples, "allocated_bytes")):
        if np.isfinite(columns[name]).any():
            at = int(np.nanargmax(columns[name]))
            candidates.append((float(columns[name][at]), float(columns["time_ns"][at]), _length_ns(columns, at)))
    if not candidates:
        return None
    _, time_ns, length_ns = max(candidates, key=lambda one: one[0])
    end = (time_ns - zero) / 1e9
    return RequestedRange("time", end - length_ns / 1e9 - _AROUND_S, end + READING_HOLDS_S, sys.maxsize)


def _length_ns(columns: dict[str, FloatArray], at: int) -> float:
    """Return the time from the row before to this one."""
    return float(columns["time_ns"][at] - columns["time_ns"][at - 1]) if at else 0.0


def _columns(
    connection: Connection, run: StoredRun, place: RankDevice, stream: str, names: list[str], window: RequestedRange
) -> dict[str, FloatArray]:
    thinned = load(connection, run, place, stream, names, window)
    return {name: floats(thinned.columns[name]) for name in names}


def _level(level: Level, sizes: dict[str, float], total: float) -> PeakLevel:
    parts: list[PeakPart] = [
        {"role": part.role, "label": part.label, "bytes": _whole(sizes[part.role])}
        for part in PARTS
        if part.level == level and part.shown == "open" and np.isfinite(sizes[part.role])
    ]
    if level == "card" and not parts:
        parts.append({"role": "outside", "label": "outside PyTorch", "bytes": None})
    return {"level": level, "total_bytes": _whole(total), "parts": parts}


def _whole(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
