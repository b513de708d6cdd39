"""Snapshot files."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class SnapshotDevice(TypedDict):
    """A device of a snapshot file."""

    recording: str
    """Identifier under which it opens as a recording."""
    device: int
    """Index of the device."""
    events: int
    """Number of events."""
    allocations: int
    """Number of allocations."""
    out_of_memory: int
    """Number of failed requests."""
    first_time_ns: int | None
    """Time of the first event, since 1970."""
    last_time_ns: int | None
    """Time of the last event, since 1970."""
    peak_reserved_bytes: int
    """Highest reserved memory."""
    end_reserved_bytes: int
    """Reserved memory at the end."""
    end_allocated_bytes: int
    """Allocated memory at the end."""
    private_pools: list[list[int]]
    """Identifiers of the private pools, at most 100."""
    streams: list[int]
    """Streams, at most 100."""
    settings: str
    """Allocator settings in force at the end."""
    settings_given: str
    """Text of the settings that was set last; it may be a part of them."""
    settings_in_force: dict[str, Any]
    """Settings in force by PyTorch's names, as far as the file contains them."""
    torch: str
    """Version of PyTorch."""
    notes: list[str]
    """Limits of the recording, in sentences."""


class SnapshotCurve(TypedDict):
    """Coarse curve of a device, from the events alone: the highest values of stretches of equal length."""

    device: int
    """Index of the device."""
    events: int
    """Number of events."""
    event: list[int]
    """First event of each stretch, at most 300."""
    requested_bytes: list[int] | None
    """Memory that the program requested, without rounding; null: events are missing."""
    reserved_bytes: list[int] | None
    """Reserved memory; null: events are missing."""


class SnapshotRow(TypedDict):
    """A snapshot file."""

    snapshot: str
    """Identifier of the snapshot."""
    name: str
    """Name of the file."""
    project: str | None
    """Project that it belongs to; null: none."""
    sha256: str
    """SHA-256 of the file."""
    bytes: int
    """Size of the file."""
    stored_bytes: int
    """Size of its columns on the server."""
    state: str
    """`waiting`, `converting`, `ready` or `failed`."""
    place: int
    """Number of files that are converted before it."""
    preparing: bool
    """Whether its conversion starts, and compiles once after an installation."""
    done_bytes: int
    """Bytes that are converted."""
    total_bytes: int
    """Bytes to convert."""
    curves: list[SnapshotCurve]
    """Coarse curves of the devices, from the end of the reading to the end of the conversion; else empty."""
    problem: str | None
    """Reason why the conversion failed."""
    received_seconds: float | None
    """Arrival of the file, since 1970."""
    devices: list[SnapshotDevice]
    """Devices of a converted file."""
    notes: list[str]
    """Limits of the file, in sentences."""


class UploadedSnapshot(SnapshotRow):
    """A snapshot file that was uploaded."""

    known: bool
    """Whether the same file is stored already."""


class UploadState(TypedDict):
    """An upload in parts."""

    upload: str
    """Identifier of the upload."""
    name: str
    """Name of the file."""
    size_bytes: int
    """Size of the file."""
    received_bytes: int
    """Bytes that the server has: the offset of the next part."""
    part_bytes: int
    """Maximum size of a part."""


class SnapshotList(TypedDict):
    """Snapshot files of the server."""

    snapshots: list[SnapshotRow]
    """Files, newest first."""
    stored_bytes: int
    """Size of all of their columns."""
    max_bytes: int
    """Limit of that size."""
