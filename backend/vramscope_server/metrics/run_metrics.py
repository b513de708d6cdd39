"""Metrics of the running runs for Prometheus. Those of a run are gone when it ends or is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.engine import Connection

from vramscope_server.analysis.peak_bound import Peak, peak_bound
from vramscope_server.latest_samples import NewestValues
from vramscope_server.store.live_ranks import list_live_ranks
from vramscope_server.store.rank_summary import RankSummary

OF_RANK: Final = ("run", "name", "project", "rank")
OF_DEVICE: Final = (*OF_RANK, "device")

SAMPLED: Final = {
    "allocated_bytes": "Allocated memory, by the newest sample.",
    "reserved_bytes": "Reserved memory, by the newest sample.",
    "device_used_bytes": "Memory of the device that all processes use, by the newest sample (NVML).",
    "gpu_utilization_percent": "Time in which a kernel ran, by the newest sample (NVML).",
}
"""Columns of samples, with their help text."""

PEAKS: Final[tuple[tuple[Peak, str], ...]] = (
    ("peak_allocated", "Highest allocated memory of the rank so far, on any of its devices."),
    ("peak_reserved", "Highest reserved memory of the rank so far, on any of its devices."),
)
COUNTS: Final[dict[str, tuple[str, Callable[[RankSummary], int | None]]]] = {
    "steps": ("Steps of the rank.", lambda summary: summary.steps),
    "out_of_memory_errors": ("Out-of-memory errors of the rank, survived ones included.", lambda summary: summary.ooms),
}


def run_metrics(connection: Connection, latest: NewestValues, limit: int) -> list[Metric]:
    """Metrics of the visible live ranks, at most ``limit`` of them. What is not known has no line."""
    found, total = list_live_ranks(connection, limit)
    sampled = {
        name: GaugeMetricFamily(f"vramscope_run_{name}", text, labels=OF_DEVICE) for name, text in SAMPLED.items()
    }
    capacity = GaugeMetricFamily(
        "vramscope_run_device_capacity_bytes", "Memory of the device, as the rank reported it.", labels=OF_DEVICE
    )
    peaks = {
        name: GaugeMetricFamily(f"vramscope_run_{name}_bytes", text, labels=(*OF_RANK, "bound")) for name, text in PEAKS
    }
    counts = {
        name: CounterMetricFamily(f"vramscope_run_{name}", text, labels=OF_RANK) for name, (text, _) in COUNTS.items()
    }
    for rank in found:
        labels = [rank.run_id, rank.name, rank.project, str(rank.rank)]
        of_devices = latest.of_rank(rank.run_id, rank.rank, rank.started_ns)
        for device, total_bytes in rank.capacities.items():
            if total_bytes is not None:
                capacity.add_metric([*labels, str(device)], total_bytes)
            for name, value in of_devices.get(device, {}).items():
                sampled[name].add_metric([*labels, str(device)], value)
        for name, _ in PEAKS:
            peak = peak_bound(rank.summary.peaks, name)
            if peak.bytes is not None:
                peaks[name].add_metric([*labels, "lower" if peak.is_lower else "exact"], peak.bytes)
        for name, (_, read) in COUNTS.items():
            if (count := read(rank.summary)) is not None:
                counts[name].add_metric(labels, count)
    left_out = GaugeMetricFamily(
        "vramscope_run_ranks_left_out",
        "Live ranks without metrics, because there are more than VRAMSCOPE_METRICS_RANKS.",
        value=total - len(found),
    )
    return [*sampled.values(), capacity, *peaks.values(), *counts.values(), left_out]
