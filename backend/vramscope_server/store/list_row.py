"""A run as a row of the list, from a row of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramscope_server.answers.runs import RunRow
from vramscope_server.store.stored_rows import StoredRun

EMULATED_UUID: Final = "GPU-656d756c-6174-6564-"
"""First part of the UUID of an emulated GPU: its bytes spell the word."""


def seconds(time_ns: int | None) -> float | None:
    """Nanoseconds to seconds; None stays None."""
    return None if time_ns is None else time_ns / 1e9


def run_row(run: StoredRun) -> RunRow:
    """A row of the list."""
    return RunRow(
        run_id=run.id,
        project=run.project,
        name=run.name,
        tags=run.tags,
        note=run.note,
        state=run.state,
        device=run.device,
        capacity_bytes=run.capacity_bytes,
        world_size=run.world_size,
        ranks_reporting=run.ranks_reporting,
        steps=run.steps,
        started_seconds=seconds(run.started_ns),
        last_seen_seconds=seconds(run.last_seen_ns),
        ended_seconds=seconds(run.ended_ns),
        peak_allocated_bytes=run.peak_allocated_bytes,
        peak_reserved_bytes=run.peak_reserved_bytes,
        sampled_allocated_bytes=run.sampled_allocated_bytes,
        sampled_reserved_bytes=run.sampled_reserved_bytes,
        lower_bound_steps=run.lower_bound_steps,
        peak_step=run.peak_step,
        step_seconds_median=seconds(run.step_median_ns),
        fragmentation_fraction=run.fragmentation_fraction,
        unusable_bytes=run.unusable_bytes,
        pinned=bool(run.pinned),
        baseline=bool(run.baseline),
        error_type=run.error_type,
        error_line=run.error_line,
        leaks=run.leaks,
        leaked_bytes=run.leaked_bytes,
        worst_leak=run.worst_leak,
        graphs_alive=run.graphs_alive,
        recordings=run.recordings,
        profiles=run.profiles,
        oom_records=run.oom_records,
        techniques=None if run.techniques is None else [short_words(one) for one in run.techniques],
        out_of_memory=run.out_of_memory,
        sparkline=run.sparkline,
    )


def is_emulated(device: Mapping[str, Any]) -> bool:
    """Whether an attached device is an emulated GPU (vramscope_emulated_gpu): its times are not meaningful."""
    return str(device.get("uuid")).startswith(EMULATED_UUID) or str(device.get("name")).startswith("emulated ")


def device_words(device: Mapping[str, Any]) -> str:
    """Name of an attached device in lists; ` (emulated)` follows that of an emulated GPU, which may have the name of a
    real one."""
    name = str(device["name"])
    return f"{name} (emulated)" if is_emulated(device) and not name.startswith("emulated ") else name


def short_words(technique: Mapping[str, Any]) -> str:
    """Shortest name of a technique (messages.Technique as plain values); ` not seen` follows one that is declared and not
    observed."""
    return str(technique["chip"]) + (" not seen" if technique["observed"] == "" else "")
