"""Runs as rows of a comparison: memory, savings relative to the baseline, and their cost in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from vramscope_server.analysis.comparison.batch_size import batch_of
from vramscope_server.analysis.comparison.comparability import reasons, same_steps
from vramscope_server.analysis.comparison.labels import RunLabel, chips_of, names
from vramscope_server.analysis.number_format import count
from vramscope_server.analysis.peak_bound import Peak, peak_bound

Run = Mapping[str, Any]
"""A run in the form of GET /runs/RUN."""
Row = dict[str, Any]

MEMORY: Final = {
    "allocated": "saved_fraction",
    "reserved": "reserved_saved_fraction",
    "device": "device_saved_fraction",
}
"""Kind of memory -> field of its savings. The first kind is the main one: the training's own need."""
_PEAKS: Final[tuple[Peak, ...]] = ("peak_allocated", "peak_reserved")
OPEN: Final = "unknown"
"""Bound of a saving between two peaks that are both lower bounds."""
SAMPLED: Final = "peak_device_bytes"
"""Peak that is always the highest sample. Savings compare the samples of two runs."""
WORDS: Final = {"nan": "NaN", "inf": "infinite", "-inf": "minus infinite"}
"""Texts of values that are not finite."""


def compared(runs: Sequence[Run]) -> list[Row]:
    """One row per run, in the same order. The first is the baseline. docs/http.md describes the fields."""
    rows = [_own(run) for run in runs]
    base = rows[0]
    for run, row, name in zip(runs, rows, names([chips_of(run["techniques"]) for run in runs]), strict=True):
        row |= {"label": name.label, "differing": list(name.differing)}
        row["saved_bounds"] = {} if row is base else saved_bounds(row["lower_bounds"], base["lower_bounds"])
        for kind, field in MEMORY.items():
            row[field] = _saved(row, base, f"peak_{kind}_bytes", row["saved_bounds"].get(field))
        row["step_time_ratio"] = _ratio(row["step_seconds_median"], base["step_seconds_median"])
        row["wall_time_ratio"] = _ratio(row["wall_seconds"], base["wall_seconds"]) if same_steps(run, runs[0]) else None
        row["throughput_ratio"] = _ratio(row["samples_per_second"], base["samples_per_second"])
        row["leave_one_out"] = _left_out(rows, row, name)
        row["reasons"] = reasons(run, runs[0])
    return rows


def _own(run: Run) -> Row:
    batch = batch_of(run)
    bounds = {name: peak_bound(run, name) for name in _PEAKS}
    device, device_of = _device_peak(run)
    seconds = run["step_seconds_median"]
    per_second = batch.effective / seconds if batch.effective is not None and seconds else None
    return {
        "run": run["run_id"],
        "name": run["name"],
        "techniques": None if run["techniques"] is None else [chip_of(technique) for technique in run["techniques"]],
        **{f"{name}_bytes": bound.bytes for name, bound in bounds.items()},
        "lower_bounds": [
            *(f"{name}_bytes" for name, bound in bounds.items() if bound.is_lower),
            *([SAMPLED] if device is not None else []),
        ],
        "peak_device_bytes": device,
        "peak_device_of": device_of,
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
    """Final and first loss; ``loss_words`` if the loss is not finite."""
    loss = run["loss"]
    if loss is None:
        return dict.fromkeys(("final_loss", "first_loss", "loss_of", "loss_source", "loss_words"))
    not_finite = loss["not_finite"]
    diverged = not_finite is not None and (not_finite["ended"] or loss["final"] is None)
    return {
        "final_loss": loss["final"],
        "first_loss": loss["first"],
        "loss_of": loss["final_of"],
        "loss_source": loss["source"],
        "loss_words": f"{WORDS[not_finite['value']]} from step {count(not_finite['step'])}" if diverged else None,
    }


def chip_of(technique: Mapping[str, Any]) -> str:
    """Text of a technique as in the list of runs. Declared techniques that were not observed are marked."""
    return f"{technique['chip']}{' not seen' if technique['observed'] == '' else ''}"


def _device_peak(run: Run) -> tuple[int | None, str | None]:
    """Highest peak of all ranks: of the process if NVML reports it, else of the whole device."""
    for name, device_of in (("peak_process_device_bytes", "process"), ("peak_device_used_bytes", "device")):
        known = [rank[name] for rank in run["ranks"] if rank[name] is not None]
        if known:
            return max(known), device_of
    return None, None


def _saved(row: Row, base: Row, field: str, bound: str | None) -> float | None:
    if row[field] is None or not base[field] or bound == OPEN:
        return None
    if field == "peak_device_bytes" and row["peak_device_of"] != base["peak_device_of"]:
        return None  # a process and a device are not comparable
    return 1 - float(row[field]) / float(base[field])


def saved_bounds(own: Sequence[str], base: Sequence[str]) -> dict[str, str]:
    """Savings that are not exact, by field, from the peaks that are lower bounds: ``at most``, ``at least`` or OPEN."""
    found = {}
    for kind, field in MEMORY.items():
        name = f"peak_{kind}_bytes"
        if name != SAMPLED and (name in own or name in base):
            found[field] = OPEN if name in own and name in base else "at most" if name in own else "at least"
    return found


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


class TechniqueEffect(TypedDict):
    """Reduction of the peaks by one technique within the combination; None is unknown."""

    technique: str
    run: str
    """Run with all techniques."""
    allocated_bytes: float | None
    reserved_bytes: float | None
    device_bytes: float | None


def _left_out(rows: Sequence[Row], row: Row, name: RunLabel) -> TechniqueEffect | None:
    """Reduction of the peaks by one technique within the combination: "all but it" compared with "all"."""
    if name.left_out is None or name.whole is None:
        return None
    whole = rows[name.whole]
    return {
        "technique": name.left_out,
        "run": whole["run"],
        "allocated_bytes": less(row, whole, "peak_allocated_bytes"),
        "reserved_bytes": less(row, whole, "peak_reserved_bytes"),
        "device_bytes": less(row, whole, "peak_device_bytes"),
    }


def less(row: Row, whole: Row, field: str) -> float | None:
    """Reduction of a peak; None if one of the two is unknown or a lower bound, and not of two highest samples."""
    own, other = row[field], whole[field]
    is_bound = field != SAMPLED and field in (*row["lower_bounds"], *whole["lower_bounds"])
    return None if own is None or other is None or is_bound else own - other
