"""Types of what ``torch.cuda.memory_snapshot()`` and ``torch.cuda.memory._snapshot()`` return.

Keys that not every version of PyTorch has are optional.
"""

from __future__ import annotations

from typing import Any, TypedDict


class SnapshotFrame(TypedDict):
    """A frame of a stack."""

    filename: str
    line: int
    name: str
    """Name of the function."""


class _BlockKeys(TypedDict):
    size: int
    state: str


class SnapshotBlock(_BlockKeys, total=False):
    """A block of a segment."""

    requested_size: int
    frames: list[SnapshotFrame]


class _SegmentKeys(TypedDict):
    device: int
    address: int
    total_size: int
    stream: int
    segment_type: str
    """``large`` or ``small``."""


class SnapshotSegment(_SegmentKeys, total=False):
    """A segment with its blocks, which fill it in order."""

    blocks: list[SnapshotBlock]
    """Blocks; the conversion to columns removes them."""
    is_expandable: bool
    segment_pool_id: tuple[int, int]


class _EventKeys(TypedDict):
    action: str
    size: int
    stream: int
    time_us: int


class SnapshotEvent(_EventKeys, total=False):
    """An event of the allocator's history."""

    addr: int
    """Address; an out-of-memory error has none."""
    device_free: int
    """Free device memory; of an out-of-memory error only."""
    pool_id: tuple[int, int]
    user_metadata: str
    frames: list[SnapshotFrame]


ReportedSettings = dict[str, Any]
"""Settings of the allocator by PyTorch's names; each version reports others."""


class AllocatorSnapshot(TypedDict, total=False):
    """Segments and history of all devices, or the part of them that a window needs."""

    segments: list[SnapshotSegment]
    device_traces: list[list[SnapshotEvent]]
    """History of each device, oldest event first."""
    allocator_settings: ReportedSettings
