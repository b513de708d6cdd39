"""Counters of an error: in the newest sample before it, and at the error."""

from __future__ import annotations

from typing import Final, TypedDict

from vramscope.protocol.oom_record import OomRecord
from vramscope.protocol.series import UNKNOWN

ALLOCATORS: Final = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "segments": "segment.all.current",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
"""Names in series.SAMPLES -> names in torch.cuda.memory_stats()."""


class CounterValues(TypedDict):
    """A counter before and at the error; None is unknown."""

    name: str
    """Name in series.SAMPLES."""
    before: int | None
    at: int | None


class CountersAtError(TypedDict):
    """Counters before and at the error."""

    before_seconds: float | None
    """Time from the newest sample to the error; None: there was no sample."""
    rows: list[CounterValues]


def before_and_at(record: OomRecord) -> CountersAtError:
    """Counters of which at least one value is known."""
    at: dict[str, int | None] = {name: record.counters.get(counter) for name, counter in ALLOCATORS.items()}
    reserved = at["reserved_bytes"]
    if record.total_bytes is not None and record.free_bytes is not None:
        at["device_used_bytes"] = record.total_bytes - record.free_bytes
    if record.outside_bytes is not None and reserved is not None:
        at["process_device_bytes"] = record.outside_bytes + reserved
    at |= {"process_rss_bytes": record.process_rss_bytes, "host_used_bytes": record.host_used_bytes}
    before = {name: value for name, value in record.counters_before.items() if value != UNKNOWN}
    rows: list[CounterValues] = [{"name": name, "before": before.get(name), "at": now} for name, now in at.items()]
    sampled_ns = before.get("time_ns")
    return {
        "before_seconds": None if sampled_ns is None else max(0.0, (record.time_ns - sampled_ns) / 1e9),
        "rows": [row for row in rows if row["before"] is not None or row["at"] is not None],
    }
