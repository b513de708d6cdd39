"""A run as the API shows it: from a record of ``tables.runs``, be it read or just about to be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def seconds(time_ns: int | None) -> float | None:
    """Nanoseconds to seconds; None stays None."""
    return None if time_ns is None else time_ns / 1e9


def run_row(run: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the runs list (docs/http.md)."""
    return {
        "run_id": run["id"],
        "project": run["project"],
        "name": run["name"],
        "tags": run["tags"],
        "state": run["state"],
        "device": run["device"],
        "capacity_bytes": run["capacity_bytes"],
        "world_size": run["world_size"],
        "ranks_reporting": run["ranks_reporting"],
        "steps": run["steps"],
        "started_seconds": seconds(run["started_ns"]),
        "last_seen_seconds": seconds(run["last_seen_ns"]),
        "ended_seconds": seconds(run["ended_ns"]),
        "peak_allocated_bytes": run["peak_allocated_bytes"],
        "peak_reserved_bytes": run["peak_reserved_bytes"],
        "peak_step": run["peak_step"],
        "step_seconds_median": seconds(run["step_median_ns"]),
        "fragmentation_fraction": run["fragmentation_fraction"],
        "pinned": bool(run["pinned"]),
        "baseline": bool(run["baseline"]),
        "error_type": run["error_type"],
        "error_line": run["error_line"],
        "leaks": run["leaks"],
        "leaked_bytes": run["leaked_bytes"],
        "worst_leak": run["worst_leak"],
        "graphs_alive": run["graphs_alive"],
        "recordings": run["recordings"],
        "out_of_memory": run["out_of_memory"],
        "sparkline": run["sparkline"],
    }
