"""Leaks of a run: the holders, what was scanned, whether memory rises, and the effect of a fix by replay."""

from __future__ import annotations

from typing import Final

import numpy as np
from fastapi import APIRouter, Request, Response
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.leaks.leaked_allocations import CannotTell
from vramscope_server.analysis.leaks.verdict_text import emptied_words, fits_when_full, kind_words, leak_verdict
from vramscope_server.analysis.series.trend import Trend, models_slope, trend, until_full, work_grows
from vramscope_server.answers.leaks import FixEffect, Floor, Leak, LeakInWords, LeakReplay, LeakReport, LeakScan
from vramscope_server.answers.shared_parts import Damage as DamagedRows
from vramscope_server.api.problems import BadRecording, NotFound
from vramscope_server.api.recording_request import readable
from vramscope_server.api.requested_range import (
    DeviceIndex,
    From,
    Rank,
    To,
    checked_range,
    damage_rows,
    floats,
    reader,
    require_rank_device,
    require_run,
)
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact, list_artifacts
from vramscope_server.store.leaks import merge_filling, merge_leaks, retained_bytes
from vramscope_server.store.list_row import seconds
from vramscope_server.store.run_queries import load_scans
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.series_reader import Damage, RankDevice, load_columns
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["leaks"])

_MOST_TRIED: Final = 8
"""Maximum number of recordings that are opened to find one with a leak's allocations."""

_RECENT: Final = 0.1
"""Share of the steps whose highest peak counts as the peak of now."""


@router.get("/runs/{run}/leaks", summary="Leaks of a run", responses=answers_with(LeakReport))
def get_leaks(
    request: Request, run: str, rank: Rank = None, device: DeviceIndex = None, first: From = None, to: To = None
) -> Response:
    """Leaks, scans, and the memory after each step of one rank and device. ``from`` and ``to`` are steps."""
    window = checked_range("step", first, to, 10)
    with reader(request) as connection:
        record = require_run(connection, run)
        place = require_rank_device(connection, record, rank, device)
        looked = load_scans(connection, record)
        fit, damaged = _fit(connection, record, place, *window.bounds(record, place))
        of_models = _models_slope(connection, record, place, fit)
        peaks = _fit_of_peaks(connection, record, place, *window.bounds(record, place))
        used_bytes = _used_bytes(connection, record, place)
        outside_bytes = _outside_bytes(connection, record, place)
    scans_of = {rank: found.scan for rank, found in looked.items()}
    leaks: list[LeakInWords] = [
        {**leak, "kind_words": kind_words(leak), "emptied": emptied_words(leak)}
        for leak in merge_leaks(scans_of, record.peak_allocated_bytes)
    ]
    named = any(not leak["on_host"] for leak in leaks)
    work = fit is not None and peaks is not None and work_grows(fit, peaks) and not named
    floor = _floor(record, place, fit, used_bytes, outside_bytes, damage_rows(damaged, place))
    if work or fits_when_full(leaks, floor["room_bytes"]):
        floor["steps_to_out_of_memory"] = None
        floor["steps_to_out_of_memory_at_least"] = None
        floor["seconds_to_out_of_memory"] = None
    verdict = leak_verdict(
        leaks,
        looked=bool(looked),
        steps=record.last_step or 0,
        ended=record.state != "running",
        floor=fit,
        steps_left=floor["steps_to_out_of_memory"],
        seconds_left=floor["seconds_to_out_of_memory"],
        ran_out_step=floor["ran_out_step"],
        models_slope=of_models,
        growing_peaks=peaks if work else None,
        ran_out=bool(record.out_of_memory or record.oom_records),
        filling=merge_filling(scans_of.values()),
        not_scanned=next((found.scan.not_scanned for found in looked.values() if found.scan.not_scanned), ""),
    )
    scans: list[LeakScan] = [
        {
            "rank": number,
            "time_seconds": seconds(found.scan.time_ns - display_skew_ns(found.skew_ns)),
            "step": found.scan.step,
            "reason": found.scan.reason,
            "seconds": found.scan.seconds,
            "tensors": found.scan.tensors,
            "not_scanned": found.scan.not_scanned,
            "leaks": len(found.scan.leaks),
        }
        for number, found in sorted(looked.items())
    ]
    return answer(
        LeakReport(
            run_id=record.id,
            name=record.name,
            state=record.state,
            verdict={"level": verdict.level, "sentence": verdict.sentence},
            leaked_bytes=retained_bytes(scans_of.values(), record.peak_allocated_bytes) if looked else None,
            worst_leak=record.worst_leak,
            graphs_alive=record.graphs_alive,
            leaks=leaks,
            scans=scans,
            floor=floor,
        )
    )


@router.get(
    "/runs/{run}/leaks/{leak}/replay",
    summary="Effect of fixing a leak",
    responses=answers_with(LeakReplay),
)
def get_replay(request: Request, run: str, leak: str) -> Response:
    """By replay of the newest recorded step that contains the leak."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        record = require_run(connection, run)
        leaks = merge_leaks({rank: found.scan for rank, found in load_scans(connection, record).items()})
        found = next((one for one in leaks if one["id"] == leak), None)
        if found is None:
            raise NotFound(
                f"Run {record.name!r} has no leak {leak[:40]!r} (any more).",
                field="leak",
                seen=leak[:40],
                expected="the id of one of /runs/RUN/leaks",
                suggestions=[one["id"] for one in leaks[:3]],
            )
        windows = [
            stored
            for stored in list_artifacts(connection, record)
            if stored.kind == "window" and stored.whole and stored.rank in found["ranks"] and stored.about.get("leaks")
        ]
    replay: LeakReplay = {
        "run_id": record.id,
        "leak": leak,
        "recording": None,
        "rank": None,
        "effect": None,
        "reason": "no recording was made since it was found",
    }
    for stored in windows[:_MOST_TRIED]:
        try:
            effect = _effect(services, stored, found)
        except (CannotTell, BadRecording) as cannot:
            replay["reason"] = str(cannot)
            continue
        replay = {**replay, "recording": stored.id, "rank": stored.rank, "effect": effect, "reason": ""}
        break
    return answer(replay)


def _effect(services: Services, stored: StoredArtifact, leak: Leak) -> FixEffect:
    """Some 10 ms, where the recording is open; kept with it. Raises CannotTell, BadRecording."""
    from vramscope_server.analysis.leaks.effect import leak_effect

    which = (leak["kind"], leak["name"], leak["file"], leak["line"])
    with readable(stored):
        opened = services.recordings.open(stored.id)
        effect = opened.once(("leak", *which), lambda: leak_effect(opened.trace, *which))
    return {
        "step": effect.step,
        "begin_event": effect.begin_event,
        "end_event": effect.end_event,
        "allocations": effect.allocations,
        "held_bytes": effect.held_bytes,
        "peak_allocated_bytes": effect.peak_allocated_bytes,
        "peak_allocated_after_bytes": effect.peak_allocated_after_bytes,
        "peak_reserved_bytes": effect.peak_reserved_bytes,
        "peak_reserved_after_bytes": effect.peak_reserved_after_bytes,
        "peak_reserved_after_band": effect.peak_reserved_after_band,
        "phase": effect.phase,
        "phase_after": effect.phase_after,
        "alive_bytes": effect.alive_bytes,
        "words": effect.words,
        "saved_bytes": effect.saved_bytes,
    }


def _fit(
    connection: Connection, run: StoredRun, place: RankDevice, first: int | None, last: int | None
) -> tuple[Trend | None, list[Damage]]:
    """The fit of the floor in a window of steps, and what of it cannot be read."""
    columns = load_columns(
        connection,
        run,
        place,
        "steps",
        ["after_step_bytes"],
        x="step",
        first=first,
        last=last,
        since_ns=place.started_ns,
    )
    x, after_step_bytes = columns.columns["step"].astype(np.float64), floats(columns.columns["after_step_bytes"])
    return trend(x, after_step_bytes, on_host=place.device == series.CPU), columns.damaged


def _models_slope(connection: Connection, run: StoredRun, place: RankDevice, fit: Trend | None) -> float | None:
    """Bytes per step that parameters, gradients, buffers and optimizer state grow by, if they are what the floor rises by."""
    if fit is None:
        return None
    names = [f"end_{category}_bytes" for category in ("parameters", "gradients", "buffers", "optimizer")]
    columns = load_columns(
        connection,
        run,
        place,
        "steps",
        [*names, "after_step_bytes"],
        x="step",
        first=int(fit.first),
        last=int(fit.last),
        since_ns=place.started_ns,
    )
    models = np.sum([floats(columns.columns[name]) for name in names], axis=0)
    return models_slope(
        columns.columns["step"].astype(np.float64),
        models,
        floats(columns.columns["after_step_bytes"]),
        fit.last - fit.first,
    )


def _fit_of_peaks(
    connection: Connection, run: StoredRun, place: RankDevice, first: int | None, last: int | None
) -> Trend | None:
    """The fit of the highest allocated memory of each step."""
    names = ["peak_allocated_bytes"]
    columns = load_columns(
        connection, run, place, "steps", names, x="step", first=first, last=last, since_ns=place.started_ns
    )
    return trend(columns.columns["step"].astype(np.float64), floats(columns.columns[names[0]]))


def _used_bytes(connection: Connection, run: StoredRun, place: RankDevice) -> int | None:
    """What the newest steps need at their peak, whatever window is shown; where that is not known, at their floor."""
    newest = run.last_step or 0
    columns = load_columns(
        connection,
        run,
        place,
        "steps",
        ["peak_allocated_bytes", "after_step_bytes"],
        x="step",
        first=round(newest * (1 - _RECENT)),
        since_ns=place.started_ns,
    )
    tops = (
        int(columns.columns[name].max(initial=series.UNKNOWN)) for name in ("peak_allocated_bytes", "after_step_bytes")
    )
    return next((top for top in tops if top != series.UNKNOWN), None)


def _outside_bytes(connection: Connection, run: StoredRun, place: RankDevice) -> int | None:
    """What of the device is not PyTorch's, by its newest sample: CUDA's context, libraries, other processes. None: not known."""
    names = ["device_used_bytes", "reserved_bytes"]
    for first in (round((run.last_step or 0) * (1 - _RECENT)), None):
        columns = load_columns(
            connection, run, place, "samples", names, x="step", first=first, since_ns=place.started_ns
        )
        used, reserved = (columns.columns[name] for name in names)
        known = np.flatnonzero((used != series.UNKNOWN) & (reserved != series.UNKNOWN))
        if len(known):
            return max(0, int(used[known[-1]] - reserved[known[-1]]))
    return None


def _floor(
    run: StoredRun,
    place: RankDevice,
    fit: Trend | None,
    used_bytes: int | None,
    outside_bytes: int | None,
    damaged: list[DamagedRows],
) -> Floor:
    known_room = place.capacity_bytes is not None and used_bytes is not None
    # What is outside is not known without NVML: then the room is too large by CUDA's context, some 500 MiB.
    room = place.capacity_bytes - used_bytes - (outside_bytes or 0) if known_room else None  # type: ignore[operator]
    # A run that has ended does not run out any more.
    steps_left, soonest = until_full(fit, room) if run.state == "running" else (None, None)
    step_seconds = seconds(run.step_median_ns)
    known = steps_left is not None and step_seconds is not None
    died = run.state == "failed" and "OutOfMemory" in (run.error_type or "")
    return {
        "rank": place.rank,
        "device": place.device,
        "steps": None if fit is None else fit.steps,
        "first_step": None if fit is None else int(fit.first),
        "last_step": None if fit is None else int(fit.last),
        "slope_bytes_per_step": None if fit is None else fit.slope,
        "slope_low_bytes_per_step": None if fit is None else fit.low,
        "slope_high_bytes_per_step": None if fit is None else fit.high,
        "smallest_detectable_bytes_per_step": None if fit is None else fit.margin,
        "growing": None if fit is None or fit.rises_in_jumps else fit.growing,
        "capacity_bytes": place.capacity_bytes,
        "outside_bytes": outside_bytes,
        "room_bytes": room,
        "steps_to_out_of_memory": steps_left,
        "steps_to_out_of_memory_at_least": soonest,
        "seconds_to_out_of_memory": steps_left * step_seconds if known else None,  # type: ignore[operator]
        "damaged": damaged,
        "ran_out_step": (run.last_step or 0) + 1 if died else None,
    }
