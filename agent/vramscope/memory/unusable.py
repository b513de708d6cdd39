"""Measures how much of the free memory this run cannot use, now and then while it trains.

``unusable_bytes``, as the server defines it for recorded windows (``analysis/fragmentation``): each free piece counts by
the share of its heap's demand that does not fit into it. The demand is what the run asked for in its last recorded window;
before there is one, unusable is not known.
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
"""(pool's id, large, stream): what the allocator searches for one request"""


class Sizes(NamedTuple):
    """One heap's requests: rounded sizes, rising, and the share of the heap's bytes in requests of up to each."""

    size_bytes: list[int]
    share: list[float]


class Demand:
    """What a run asked for in a window, by heap, and the settings that say which free piece serves it."""

    def __init__(
        self,
        requests: Iterable[tuple[HeapKey, int, int]],
        *,
        max_split_bytes: int | None,
        slack_bytes: int,
        closed: bool = False,
    ) -> None:
        """``requests``: heap, rounded size, how many; the bounds as in max_split_size and max_non_split_rounding.

        closed   expandable segments are switched off: the allocator takes nothing of those that are there
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
        """The demand in a recorded window. Some 40 ns an event."""
        settings = window.settings_in_force
        divisions = _divisions(settings.get("roundup_power2_divisions"))
        # the lowest byte says which action it is, as torch runs on little-endian machines
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
        """Of the segments of one device, as ``torch.cuda.memory_snapshot()`` gives them."""
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
                elif not (segment["is_expandable"] and block is blocks[-1]):  # (behind that one more can be mapped)
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
    """Reads each device now and then. Used by one thread; a reading holds the interpreter for some ms."""

    def __init__(self) -> None:
        self._demands: dict[int, Demand] = {}
        self._due_s: dict[int, float] = {}

    def learn(self, window: Window) -> None:
        """A window was recorded. May come from another thread."""
        demand = Demand.of(window)
        self._due_s[window.device] = 0.0
        self._demands[window.device] = demand

    def read(self, device: int) -> int:
        """Unusable bytes, or UNKNOWN: no window yet, or not due yet."""
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


def layout() -> list[SnapshotSegment] | None:
    """All segments and blocks, without any history.

    Before torch 2.11 they come with the whole history, which takes 40 µs an event: None while somebody records one. When recording
    ends, PyTorch forgets it.
    """
    import torch

    read: Callable[..., list[SnapshotSegment]] = torch.cuda.memory_snapshot
    if "include_traces" in inspect.signature(read).parameters:
        return read(include_traces=False)
    # PyTorch crashes when it is asked before the allocator exists.
    if not torch.cuda.is_initialized() or torch._C._cuda_isHistoryEnabled():
        return None
    return read()


def _sizes(by_size: Mapping[int, int]) -> Sizes:
    total, reached = sum(by_size.values()), 0
    sizes = Sizes([], [])
    for size, asked in sorted(by_size.items()):
        reached += asked
        sizes.size_bytes.append(size)
        sizes.share.append(reached / total)
    return sizes


def _divisions(setting: object) -> list[int]:
    """As ``rounded_bytes`` takes them, of a window's setting: one number for all slots, or ``[1:4,2:4,...]``."""
    if isinstance(setting, int):
        return [setting] if setting > 1 else []
    return (
        [int(entry.partition(":")[2]) for entry in setting.strip("[]").split(",")] if isinstance(setting, str) else []
    )


def _bytes(mib: object) -> int | None:
    return int(mib * MIB) if isinstance(mib, (int, float)) and mib > 0 else None
