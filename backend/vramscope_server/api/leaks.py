"""Leaks of a run: the holders, what was scanned, whether memory rises, and the effect of a fix by replay."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from vramscope.protocol.leak_notes import was_needed
from vramscope_server.analysis.leaks.leaked_allocations import CannotTell
from vramscope_server.analysis.leaks.verdict_text import emptied_words, kind_words, leak_verdict
from vramscope_server.answers.leaks import FixEffect, Floor, Leak, LeakInWords, LeakReplay, LeakReport, LeakScan
from vramscope_server.api.problems import BadRecording, NotFound
from vramscope_server.api.recording_request import readable
from vramscope_server.api.requested_range import (
    DeviceIndex,
    From,
    Rank,
    To,
    checked_range,
    damage_rows,
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
from vramscope_server.store.memory_floor import MemoryFloor, growth_of_models, memory_floor
from vramscope_server.store.run_queries import load_scans
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.series_reader import RankDevice
from vramscope_server.store.stored_rows import StoredRun

router = APIRouter(tags=["leaks"])

_MOST_TRIED: Final = 8
"""Maximum number of recordings that are opened to find one with a leak's allocations."""


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
        scans_of = {rank: found.scan for rank, found in looked.items()}
        merged = merge_leaks(scans_of, record.peak_allocated_bytes)
        measured = memory_floor(connection, record, place, merged, *window.bounds(record, place))
        of_models = growth_of_models(connection, record, place, measured.fit)
    leaks: list[LeakInWords] = [
        {**leak, "kind_words": kind_words(leak), "emptied": emptied_words(leak)} for leak in merged
    ]
    floor = _floor(record, place, measured)
    verdict = leak_verdict(
        leaks,
        looked=bool(looked),
        steps=record.last_step or 0,
        ended=record.state != "running",
        floor=measured.fit,
        steps_left=floor["steps_to_out_of_memory"],
        seconds_left=floor["seconds_to_out_of_memory"],
        ran_out_step=floor["ran_out_step"],
        models_slope=of_models,
        growing_peaks=measured.peaks,
        ran_out=bool(record.out_of_memory or record.oom_records),
        filling=merge_filling(scans_of.values()),
        saw_no_reason=bool(looked) and not any(map(was_needed, scans_of.values())),
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
    from vramscope_server.analysis.leaks.fix_effect import leak_effect

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


def _floor(run: StoredRun, place: RankDevice, measured: MemoryFloor) -> Floor:
    fit = measured.fit
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
        "growing": None if fit is None or fit.rises_in_jumps or fit.slows else fit.growing,
        "capacity_bytes": place.capacity_bytes,
        "outside_bytes": measured.outside_bytes,
        "room_bytes": measured.room_bytes,
        "steps_to_out_of_memory": measured.forecast.steps,
        "steps_to_out_of_memory_at_least": measured.forecast.steps_at_least,
        "seconds_to_out_of_memory": measured.forecast.seconds,
        "damaged": damage_rows(measured.damaged, place),
        "ran_out_step": (run.last_step or 0) + 1 if died else None,
    }
