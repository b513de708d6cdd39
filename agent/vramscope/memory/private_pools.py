"""Memory of private pools: reserved for the replays of CUDA graphs (or a user's ``MemPool``), and of use to nobody else.

The allocator's counters tell how much each pool has reserved, from PyTorch 2.13 on. What lies in them is counted among all other
blocks: a graph's intermediate results as free, though its replays write there. So the pools' own blocks are read now and then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vramscope.memory.pytorch_snapshot import SnapshotSegment

RESERVED: Final = "reserved_bytes_by_private_pools"
"""Allocator counter, from PyTorch 2.13 on."""
EVERY_S: Final = 2.0
MOST_SHARE: Final = 0.001
"""Maximum share of the time for reading: 0.1 ms for a graph of some tens of blocks; with more blocks, reads are rarer."""


class PrivatePools:
    """For the sampler's thread. Free while there are none; else a reading holds the interpreter for about 1 µs a block."""

    def __init__(self) -> None:
        self._inside: dict[int, dict[str, int]] = {}
        self._reserved: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    def read(self, device: int, stats: Mapping[str, Any]) -> dict[str, int]:
        """Columns of a sample, from the counters that were just read; none where PyTorch does not tell.

        What lies inside is as of the newest reading, at most some seconds old, and read at once when the pools grow or shrink.
        """
        pools = stats.get(RESERVED)
        if pools is None:
            return {}
        reserved = sum(pool["all"]["current"] for pool in pools.values())
        if not reserved and device not in self._inside:
            return {"private_pools_bytes": 0}
        began = time.monotonic()
        if reserved != self._reserved.get(device) or began >= self._due_s[device]:
            self._inside[device] = inside_of(segment for pool in pools for segment in _layout(pool, device))
            self._reserved[device] = reserved
            self._due_s[device] = began + max(EVERY_S, (time.monotonic() - began) / MOST_SHARE)
        return {"private_pools_bytes": reserved, **self._inside[device]}


def inside_of(segments: Iterable[SnapshotSegment]) -> dict[str, int]:
    """What of these segments, as ``torch.cuda.memory_snapshot()`` gives them, all counters count as in use and as free pieces."""
    requested = active = pieces = 0
    for segment in segments:
        blocks = segment["blocks"]
        for block in blocks:
            if block["state"] == "inactive":
                pieces += block["size"] if len(blocks) > 1 else 0
            else:
                active += block["size"]
                requested += block["requested_size"] if block["state"] == "active_allocated" else 0
    return {
        "private_requested_bytes": requested,
        "private_active_bytes": active,
        "private_inactive_split_bytes": pieces,
    }


def _layout(pool: tuple[int, int], device: int) -> Iterable[SnapshotSegment]:
    """The segments of one pool on one device, without any history."""
    import torch

    segments: list[SnapshotSegment] = torch.cuda.memory_snapshot(pool, include_traces=False)
    return (segment for segment in segments if segment["device"] == device)
