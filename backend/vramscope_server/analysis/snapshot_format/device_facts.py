"""Facts of a device of a snapshot, as the server keeps and lists them."""

from __future__ import annotations

from typing import TypedDict


class DeviceFacts(TypedDict):
    """A device of a converted snapshot file; docs/http.md describes the fields."""

    device: int
    events: int
    allocations: int
    out_of_memory: int
    first_time_ns: int | None
    last_time_ns: int | None
    end_reserved_bytes: int
    end_allocated_bytes: int
    private_pools: list[list[int]]
    streams: list[int]
    settings: str
    settings_given: str
    settings_in_force: dict[str, int | float | bool | str | None]
    torch: str
    notes: list[str]
    peak_reserved_bytes: int
