"""The counters of an error: as the newest sample before it had them, and as they were when memory had run out."""

from __future__ import annotations

from typing import Any, Final

from vramscope.protocol.oom_record import BlackBox
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
"""of series.SAMPLES, by their names in torch.cuda.memory_stats()"""


def before_and_at(box: BlackBox) -> dict[str, Any]:
    """``{before_seconds, rows[{name, before, at}]}``: names as series.SAMPLES, None where one of them is not known.

    before_seconds   how long before the error the sample was taken; None: there was none
    """
    at: dict[str, int | None] = {name: box.counters.get(counter) for name, counter in ALLOCATORS.items()}
    reserved = at["reserved_bytes"]
    if box.total_bytes is not None and box.free_bytes is not None:
        at["device_used_bytes"] = box.total_bytes - box.free_bytes
    if box.outside_bytes is not None and reserved is not None:
        at["process_device_bytes"] = box.outside_bytes + reserved
    at |= {"process_rss_bytes": box.process_rss_bytes, "host_used_bytes": box.host_used_bytes}
    before = {name: value for name, value in box.counters_before.items() if value != UNKNOWN}
    rows = [{"name": name, "before": before.get(name), "at": now} for name, now in at.items()]
    taken_ns = before.get("time_ns")
    return {
        "before_seconds": None if taken_ns is None else max(0.0, (box.time_ns - taken_ns) / 1e9),
        "rows": [row for row in rows if row["before"] is not None or row["at"] is not None],
    }
