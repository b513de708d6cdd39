"""Measures the memory of private pools, which only the replays of CUDA graphs or a user's ``MemPool`` can use.

From PyTorch 2.13 on, the allocator counts the reserved bytes of each pool. Other counters do not distinguish pools: they count
intermediate results of a graph as free, although its replays write to them. So the blocks of the pools are read now and then.
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
    """Reads private pools, on the sampler's thread. A reading holds the interpreter lock for about 1 µs per block.

    It costs nothing while there are no pools.
    """

    def __init__(self) -> None:
        self._inside: dict[int, dict[str, int]] = {}
        self._reserved: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    def read(self, device: int, stats: Mapping[str, Any]) -> dict[str, int]:
        """Return columns of a sample. ``stats``: counters that were just read. Empty if PyTorch does not report pools.

        The bytes of blocks are from the last reading of the pools, which is a few seconds old at most. The pools are read at
        once if they grow or shrink. While a history is recorded, which may be the user's, they are left out: a reading adds an
        event to it.
        """
        pools = stats.get(RESERVED)
        if pools is None:
            return {}
        reserved = sum(pool["all"]["current"] for pool in pools.values())
        if not reserved and device not in self._inside:
            return {"private_pools_bytes": 0}
        if _is_history_recorded():
            return {"private_pools_bytes": reserved}
        began = time.monotonic()
        if reserved != self._reserved.get(device) or began >= self._due_s[device]:
            self._inside[device] = counted_bytes(segment for pool in pools for segment in _layout(pool, device))
            self._reserved[device] = reserved
            self._due_s[device] = began + max(EVERY_S, (time.monotonic() - began) / MOST_SHARE)
        return {"private_pools_bytes": reserved, **self._inside[device]}


def counted_bytes(segments: Iterable[SnapshotSegment]) -> dict[str, int]:
    """Return the bytes of private pools that the allocator's overall counters count as requested, active and inactive split.

    segments   segments of private pools in the format of ``torch.cuda.memory_snapshot()``
    """
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


def _is_history_recorded() -> bool:
    import torch

    return bool(torch._C._cuda_isHistoryEnabled())


def _layout(pool: tuple[int, int], device: int) -> Iterable[SnapshotSegment]:
    """Return the segments of one pool on one device, without the history."""
    import torch

    segments: list[SnapshotSegment] = torch.cuda.memory_snapshot(pool, include_traces=False)
    return (segment for segment in segments if segment["device"] == device)
