"""Runs as rows of a comparison: what each needs, what it saves against the baseline, and what that costs in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope_server.analysis.comparison.batch_size import batch_of
from vramscope_server.analysis.comparison.comparability import reasons, same_steps
from vramscope_server.analysis.comparison.labels import RunLabel, chips_of, names
from vramscope_server.analysis.units import count

Run = Mapping[str, Any]
"""as GET /runs/RUN tells it"""
Row = dict[str, Any]

MEMORY: Final = {
    "allocated": "saved_fraction",
    "reserved": "reserved_saved_fraction",
    "device": "device_saved_fraction",
}
"""what is measured -> the field that says what of it is saved. The first is the headline: what the training itself needs."""


WORDS: Final = {"nan": "NaN", "inf": "infinite", "-inf": "minus infinite"}
"""what is no finite number, as people read it"""


def compared(runs: Sequence[Run]) -> list[Row]:
    """A row a run, in their order; the first is the baseline (docs/http.md says what the fields are)."""
    rows = [_own(run) for run in runs]
    base = rows[0]
    for run, row, name in zip(runs, rows, names([chips_of(run["techniques"]) for run in runs]), strict=True):
        row |= {"label": name.label, "differing": list(name.differing)}
        for kind, field in MEMORY.items():
            row[field] = _saved(row, base, f"peak_{kind}_bytes")
        row["step_time_ratio"] = _ratio(row["step_seconds_median"], base["step_seconds_median"])
        row["wall_time_ratio"] = _ratio(row["wall_seconds"], base["wall_seconds"]) if same_steps(run, runs[0]) else None
        row["throughput_ratio"] = _ratio(row["samples_per_second"], base["samples_per_second"])
        row["leave_one_out"] = _left_out(rows, row, name)
        row["reasons"] = reasons(run, runs[0])
    return rows


def _own(run: Run) -> Row:
    batch = batch_of(run)
    device, seen_by = _device_peak(run)
    seconds = run["step_seconds_median"]
    per_second = batch.effective / seconds if batch.effective is not None and seconds else None
    return {
        "run": run["run_id"],
        "name": run["name"],
        "techniques": None if run["techniques"] is None else [_chip(told) for told in run["techniques"]],
        "peak_allocated_bytes": run["peak_allocated_bytes"],
        "peak_reserved_bytes": run["peak_reserved_bytes"],
        "peak_device_bytes": device,
        "peak_device_of": seen_by,
        "capacity_bytes": run["capacity_bytes"],
        "step_seconds_median": seconds,
        "wall_seconds": run["trained_seconds"],
        "batch": batch.samples,
        "accumulation": batch.accumulation,
        "effective_batch": batch.effective,
        "samples_per_second": per_second,
        "emulated": any(device["emulated"] for rank in run["ranks"] for device in rank["devices"]),
        **{
            name: run[name]
            for name in ("fragmentation_fraction", "unusable_bytes", "leaked_bytes", "worst_leak", "graphs_alive")
        },
        "leaks": run["leak_count"],
        **_loss(run),
        **{name: run[name] for name in ("steps", "state", "recordings")},
    }


def _loss(run: Run) -> Row:
    """Where its loss ended, and where it began; ``loss_words`` where no number can say it."""
    told = run["loss"]
    if told is None:
        return dict.fromkeys(("final_loss", "first_loss", "loss_of", "loss_source", "loss_words"))
    odd = told["not_finite"]
    lost = odd is not None and (odd["ended"] or told["final"] is None)
    return {
        "final_loss": told["final"],
        "first_loss": told["first"],
        "loss_of": told["final_of"],
        "loss_source": told["source"],
        "loss_words": f"{WORDS[odd['value']]} from step {count(odd['step'])}" if lost else None,
    }


def _chip(told: Mapping[str, Any]) -> str:
    """As the list of runs words it: what is declared and was looked for in vain says so."""
    return f"{told['chip']}{' not seen' if told['observed'] == '' else ''}"


def _device_peak(run: Run) -> tuple[int | None, str | None]:
    """On the rank that has most: of the process where NVML tells that, else of the whole device."""
    for name, seen_by in (("peak_process_device_bytes", "process"), ("peak_device_used_bytes", "device")):
        known = [rank[name] for rank in run["ranks"] if rank[name] is not None]
        if known:
            return max(known), seen_by
    return None, None


def _saved(row: Row, base: Row, field: str) -> float | None:
    if row[field] is None or not base[field]:
        return None
    if field == "peak_device_bytes" and row["peak_device_of"] != base["peak_device_of"]:
        return None  # a process is no device
    return 1 - float(row[field]) / float(base[field])


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _left_out(rows: Sequence[Row], row: Row, name: RunLabel) -> dict[str, Any] | None:
    """By how much one technique lowers the peaks inside the combination: "all but it" against "all"."""
    if name.left_out is None or name.whole is None:
        return None
    whole = rows[name.whole]
    told: dict[str, Any] = {"technique": name.left_out, "run": whole["run"]}
    for kind in MEMORY:
        own, other = row[f"peak_{kind}_bytes"], whole[f"peak_{kind}_bytes"]
        told[f"{kind}_bytes"] = None if own is None or other is None else own - other
    return told
