"""Measures every few seconds how much of the free memory this run cannot use.

The definition of ``unusable_bytes`` is that of the server for recorded windows (``analysis/fragmentation``). Of each free block,
the unusable share is the share of its heap's requested bytes that do not fit into it. The requests are those of the last
recorded window. Before the first window the result is unknown.
"""

from __future__ import annotations

import inspect
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from typing import Final, NamedTuple

from vramscope.memory.peak_counters import rounded_bytes
from vramscope.memory.pytorch_snapshot import SnapshotSegment
from vramscope.protocol import series
from vramscope.protocol.window import ACTIONS, Window

MIB: Final = 1024 * 1024
SMALL_BYTES: Final = MIB
"""Largest rounded request of the small pool."""
EVERY_S: Final = 2.0
_ALLOCATES: Final = bytes(code == ACTIONS.index("alloc") for code in range(256))
MOST_SHARE: Final = 0.001
"""Maximum share of the time for reading. GPT-2 small has 540 blocks, read in 0.3 ms; with more blocks, reads are rarer."""

HeapKey = tuple[tuple[int, int], bool, int]
"""(id of the pool, large, stream): the blocks that the allocator searches for one request."""


class Sizes(NamedTuple):
    """Requests of one heap: sorted rounded sizes, and for each the share of the heap's bytes in requests of up to that size."""

    size_bytes: list[int]
    share: list[float]


class Demand:
    """Requests of a run in a window by heap, and the settings that decide which free block serves a request."""

    def __init__(
        self,
        requests: Iterable[tuple[HeapKey, int, int]],
        *,
        max_split_bytes: int | None,
        slack_bytes: int,
        closed: bool = False,
    ) -> None:
        """Store requests and settings.

        requests          (heap, rounded size, number of requests)
        max_split_bytes   max_split_size; None if it is not set
        slack_bytes       max_non_split_rounding
        closed            expandable segments are off: the allocator uses none of the existing ones
        """
        asked: defaultdict[HeapKey, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for heap, size, times in requests:
            asked[heap][size] += size * times
        self.heaps = {heap: _sizes(by_size) for heap, by_size in asked.items()}
        self._max_split_bytes = max_split_bytes
        self._slack_bytes = slack_bytes
        self._closed = closed

    @classmethod
    def of(cls, window: Window) -> Demand:
        """Return the demand of a recorded window. Takes about 40 ns per event."""
        settings = window.settings_in_force
        divisions = _divisions(settings.get("roundup_power2_divisions"))
        # The first byte of each number is its lowest one, because torch runs on little-endian machines only.
        allocates = window.events["action"][::8].translate(_ALLOCATES)
        columns = (array("q", window.events[name]) for name in ("size_bytes", "pool", "stream"))
        requests = Counter(compress(zip(*columns, strict=True), allocates))
        return cls(
            (
                (
                    (window.pools[max(0, pool)], (rounded := rounded_bytes(size, divisions)) > SMALL_BYTES, stream),
                    rounded,
                    times,
                )
                for (size, pool, stream), times in requests.items()
            ),
            max_split_bytes=_bytes(settings.get("max_split_size_mb")),
            slack_bytes=_bytes(settings.get("max_non_split_rounding_mb")) or 20 * MIB,
            closed=settings.get("expandable_segments") is False,
        )

    def unusable_bytes(self, segments: Iterable[SnapshotSegment]) -> int:
        """Return the unusable bytes in the segments of one device, in the format of ``torch.cuda.memory_snapshot()``."""
        unusable = 0
        for segment in segments:
            first, second = segment["segment_pool_id"]
            heap = ((first, second), segment["segment_type"] == "large", segment["stream"])
            sizes = self.heaps.get(heap)
            blocks = segment["blocks"]
            for block in blocks:
                if block["state"] != "inactive":
                    continue
                size = block["size"]
                if sizes is None or (self._closed and segment["is_expandable"]):
                    unusable += size
                elif not (segment["is_expandable"] and block is blocks[-1]):  # the last block can grow by mapping more
                    unusable += round(size * (1.0 - self._served(sizes, size)))
        return unusable

    def _served(self, sizes: Sizes, size: int) -> float:
        upper = bisect_right(sizes.size_bytes, size)
        served = sizes.share[upper - 1] if upper else 0.0
        if self._max_split_bytes is not None and size >= self._max_split_bytes:
            # An oversize block serves oversize requests that leave less than the slack.
            least = max(self._max_split_bytes, size - self._slack_bytes + 1)
            lower = bisect_left(sizes.size_bytes, least)
            served -= sizes.share[lower - 1] if lower else 0.0
        return max(0.0, served)


class UnusableReader:
    """Reads each device every few seconds, on one thread. A reading holds the interpreter lock for some milliseconds."""

    def __init__(self) -> None:
        self._demands: dict[int, Demand] = {}
        self._due_s: dict[int, float] = {}

    def learn(self, window: Window) -> None:
        """Use the requests of a recorded window from now on. May be called from another thread."""
        demand = Demand.of(window)
        self._due_s[window.device] = 0.0
        self._demands[window.device] = demand

    def read(self, device: int) -> int:
        """Return the unusable bytes; UNKNOWN before the first window, and if no reading is due."""
        demand = self._demands.get(device)
        began = time.monotonic()
        if demand is None or began < self._due_s[device]:
            return series.UNKNOWN
        segments = layout()
        if segments is None:
            return series.UNKNOWN
        unusable = demand.unusable_bytes(segment for segment in segments if segment["device"] == device)
        took = time.monotonic() - began
        self._due_s[device] = began + max(EVERY_S, took / MOST_SHARE)
        return unusable


def layout(*, marks_history: bool = False) -> list[SnapshotSegment] | None:
    """Return all segments and blocks, without the history; None while a history is being recorded, which may be the user's.

    A snapshot adds an event to it. ``marks_history`` accepts that. Before torch 2.11 a snapshot always contains the whole
    history, which takes 40 µs per event, so that the result is None in any case. PyTorch drops the history when recording ends.
    """
    import torch

    if not torch.cuda.is_initialized():  # PyTorch crashes if these are called before the allocator exists
        return None
    read: Callable[..., list[SnapshotSegment]] = torch.cuda.memory_snapshot
    is_recorded = torch._C._cuda_isHistoryEnabled()
    if "include_traces" in inspect.signature(read).parameters:
        return None if is_recorded and not marks_history else read(include_traces=False)
    return None if is_recorded else read()


def _sizes(by_size: Mapping[int, int]) -> Sizes:
    total, reached = sum(by_size.values()), 0
    sizes = Sizes([], [])
    for size, asked in sorted(by_size.items()):
        reached += asked
        sizes.size_bytes.append(size)
        sizes.share.append(reached / total)
    return sizes


def _divisions(setting: object) -> list[int]:
    """Convert a window's setting, one number for all slots or ``[1:4,2:4,...]``, to the divisions of ``rounded_bytes``."""
    if isinstance(setting, int):
        return [setting] if setting > 1 else []
    return (
        [int(entry.partition(":")[2]) for entry in setting.strip("[]").split(",")] if isinstance(setting, str) else []
    )


def _bytes(mib: object) -> int | None:
    return int(mib * MIB) if isinstance(mib, (int, float)) and mib > 0 else None
