"""Replays a program as PyTorch's caching allocator would run it, under given settings and on a given device.

A replay takes about 0.2 µs for each operation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry, int64, lean_entry
from vramscope_server.analysis.simulator import heap as h
from vramscope_server.analysis.simulator.allocation import allocate, free_at_once, free_later, free_now
from vramscope_server.analysis.simulator.heap import (
    FREEABLE,
    STATISTICS,
    STOPPED,
    AllocatorState,
    empty_heap,
    has_room,
    with_room,
)
from vramscope_server.analysis.simulator.initial_state import InitialState, fill_heap
from vramscope_server.analysis.simulator.program import (
    ALLOC,
    EMPTY_CACHE,
    EMPTY_POOL,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    POOL_FREEABLE,
    Program,
)
from vramscope_server.analysis.simulator.release import empty_pool, release_cached
from vramscope_server.analysis.simulator.settings import UNLIMITED, AllocatorSettings, NotReplayable
from vramscope_server.analysis.simulator.versions import AllocatorVersion

MOST_RESERVATION: Final = 1 << 42
"""Maximum bytes of a device. On a larger one the addresses of an expandable segment overflow."""

__all__ = ["STATISTICS", "UNLIMITED", "AddressOrder", "Hazard", "Readings", "Replay", "replay"]

AddressOrder = Literal["rising", "falling", "shuffled"]
_ORDERS: Final[tuple[AddressOrder, ...]] = ("rising", "falling", "shuffled")


class Hazard(IntFlag):
    """Conditions that a reader of a replay's results must know."""

    INTERIOR_FREE = h.INTERIOR_FREE
    """PyTorch would pass cudaFree an address inside a segment and raise CUDA's error. The replay ends there."""
    ODD_PAGE = h.ODD_PAGE
    """large_segment_size_mb is odd, so the driver refuses a page of an expandable segment. The replay ends there."""
    POOL_MISCOUNT = h.POOL_MISCOUNT
    """PyTorch's own assertion on a private pool of expandable segments would fail. The replay ends there."""
    UNBOUNDED_GROWTH = h.UNBOUNDED_GROWTH
    """Free expandable memory was skipped because of max_split_size_mb, and new memory was mapped instead. This can repeat
    without end (PyTorch issue 123548)."""


@dataclass(frozen=True)
class Readings:
    """PyTorch's statistics after each operation: int64, one row per operation."""

    address: IntArray
    """Address of the allocated block; -1 for a failed ALLOC, and for other operations."""
    statistics: IntArray
    """Shape (operations, requested STATISTICS); rows after the end of the replay are 0."""

    def __getitem__(self, name: str) -> IntArray:
        """Return the column of one of STATISTICS."""
        column: IntArray = self.statistics[:, STATISTICS.index(name)]
        return column

    @property
    def reserved_bytes(self) -> IntArray:
        return self["reserved_bytes"]

    @property
    def allocated_bytes(self) -> IntArray:
        return self["allocated_bytes"]


@dataclass(frozen=True)
class Replay:
    """Result of a replay."""

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_requested_bytes: int
    end: dict[str, int]
    """STATISTICS after the last replayed operation."""
    operations: int
    """Number of replayed operations: all, or up to the one that ended the replay."""
    out_of_memory_at: int
    """Position of the first ALLOC that failed; -1 if none did."""
    hazards: Hazard
    passed_over: int
    """Number of times that UNBOUNDED_GROWTH happened."""
    readings: Readings | None

    @property
    def retries(self) -> int:
        return self.end["num_alloc_retries"]

    @property
    def ooms(self) -> int:
        """Number of failed ALLOCs, including those that throw_on_cudamalloc_oom rejected."""
        return self.end["num_ooms"] + self.end["num_oom_rejections"]

    @property
    def device_allocs(self) -> int:
        return self.end["num_device_alloc"]

    @property
    def device_frees(self) -> int:
        return self.end["num_device_free"]


def replay(
    program: Program,
    settings: AllocatorSettings,
    *,
    profile: AllocatorVersion,
    device_bytes: int,
    device_total_bytes: int | None = None,
    limit_bytes: int | None = None,
    initial: InitialState | None = None,
    segment_addresses: Sequence[int] | IntArray | None = None,
    address_order: AddressOrder = "rising",
    readings: bool = False,
    statistics: int = len(STATISTICS),
    stop_at_oom: bool = True,
    earlier: tuple[int, AllocatorSettings] | None = None,
) -> Replay:
    """Replay a program as this version of PyTorch would run it, with these settings.

    device_bytes        maximum bytes that this process can take from the device: its size, minus the CUDA context and other
                        processes. UNLIMITED for no maximum
    device_total_bytes  size of the whole device, to which memory fractions and address reservations refer; None: device_bytes
    limit_bytes         limit of set_per_process_memory_fraction; None: the limit in the settings
    initial             segments and blocks at the start; operations with event -1, which would allocate them, are skipped
    segment_addresses   addresses of the new segments and reservations, in order. Further addresses are made up in
                        ``address_order``
    readings            also return the statistics after each operation, which take 8 bytes per operation and statistic
    statistics          number of STATISTICS to read, from the first on
    stop_at_oom         False: the replay continues after a failed ALLOC, and skips the FREE of that allocation
    earlier             (position, settings): settings for the operations before that position

    The first call in a process loads the compiled code from disk. The first call after an installation compiles it, which
    takes about seven seconds. Raises NotReplayable if the settings choose cudaMallocAsync, which PyTorch does not manage.
    """
    if settings.backend != "native":
        raise NotReplayable(
            f"backend:{settings.backend} is the driver's allocator: only the native one can be replayed"
        )
    total = device_bytes if device_total_bytes is None else device_total_bytes
    addresses = np.array([] if segment_addresses is None else segment_addresses, np.int64)
    at, first = (0, settings) if earlier is None else earlier
    row, later = (
        _settings_row(program, one, profile, initial, device_bytes, total, limit_bytes) for one in (first, settings)
    )
    row[h.ADDRESS_ORDER] = later[h.ADDRESS_ORDER] = _ORDERS.index(address_order)
    room = 1024 + (0 if initial is None else 2 * len(initial.block_address) + 2 * len(initial.segment_address))
    heap = empty_heap(row, items=_items(program, initial), room=room, addresses=addresses)
    columns = tuple(_plain(column, dtype) for column, dtype in zip(_columns(program), _DTYPES, strict=True))
    if initial is not None:
        _fill(heap, InitialState(*(_plain(column, np.int64) for column in initial)))
    count = len(program)
    read = np.zeros((count if readings else 0, 1 + statistics), np.int64)
    progress = np.array([0, -1], np.int64)  # the next operation; the first that ran out of memory
    for end in (at, count):
        part = [column[:end] for column in columns]
        while progress[0] < end:
            _run(heap, *part, progress, initial is not None, stop_at_oom, read)
            if heap.counts[STOPPED] or (stop_at_oom and progress[1] >= 0):
                break
            if progress[0] < end:
                heap = with_room(heap)
        if progress[0] < end or heap.counts[STOPPED] or (stop_at_oom and progress[1] >= 0):
            break
        heap.settings[:] = later
    counts = heap.counts
    return Replay(
        peak_reserved_bytes=int(counts[h.PEAK_RESERVED]),
        peak_allocated_bytes=int(counts[h.PEAK_ALLOCATED]),
        peak_active_bytes=int(counts[h.PEAK_ACTIVE]),
        peak_requested_bytes=int(counts[h.PEAK_REQUESTED]),
        end={name: int(counts[i]) for i, name in enumerate(STATISTICS)},
        operations=int(progress[0]),
        out_of_memory_at=int(progress[1]),
        hazards=Hazard(int(counts[h.HAZARDS])),
        passed_over=int(counts[h.PASSED_OVER]),
        readings=Readings(read[:, 0], read[:, 1:]) if readings else None,
    )


_DTYPES: Final = (np.uint8, np.int32, np.int64, np.int32, np.int32, np.int64)


def _columns(program: Program) -> tuple[npt.NDArray[Any], ...]:
    return program.op, program.item, program.size_bytes, program.stream, program.pool, program.event


def _plain(column: npt.NDArray[Any], dtype: type) -> npt.NDArray[Any]:
    """Convert a column to a contiguous writable array. For other kinds of arrays numba would compile the code again."""
    return np.require(column, dtype, ["C", "W", "A"])


def _items(program: Program, initial: InitialState | None) -> int:
    most = int(program.item.max(initial=-1))
    return 1 + (most if initial is None else max(most, int(initial.block_item.max(initial=-1))))


def _settings_row(
    program: Program,
    settings: AllocatorSettings,
    profile: AllocatorVersion,
    initial: InitialState | None,
    device_bytes: int,
    total: int,
    limit_bytes: int | None,
) -> IntArray:
    """Return the settings of the compiled code as one row of numbers."""
    fraction = settings.per_process_memory_fraction
    if limit_bytes is None:
        limit_bytes = int(fraction * total) if fraction < 1 else UNLIMITED
    threshold = settings.garbage_collection_threshold
    row = np.zeros(h.SETTINGS, np.int64)
    row[h.MAX_SPLIT] = settings.max_split_bytes
    row[h.NON_SPLIT_ROUNDING] = settings.max_non_split_rounding_bytes
    row[h.LARGE_SEGMENT] = settings.large_segment_bytes
    row[h.EXPANDABLE] = settings.expandable_segments
    row[h.LIMIT] = limit_bytes
    row[h.COLLECT_ABOVE] = int(threshold * limit_bytes) if threshold > 0 and limit_bytes < UNLIMITED else -1
    row[h.REJECT_ABOVE] = int(fraction * total) if settings.throw_on_cudamalloc_oom else UNLIMITED
    row[h.DEVICE_BYTES] = device_bytes
    row[h.RESERVATION_BYTES] = settings.reservation_bytes(min(total, MOST_RESERVATION))
    row[h.TIES] = ("address", "segment", "block").index(profile.ties)
    row[h.POOL_IS_CAPTURE] = profile.pool_is_capture
    row[h.RESERVE_BOUNDS_REQUESTS] = profile.reserve_bounds_requests
    row[h.STREAMS] = 1 + program.stream.max(initial=0)
    row[h.POOLS] = 1 + program.pool.max(initial=0)
    if initial is not None:
        row[h.STREAMS] = max(row[h.STREAMS], 1 + initial.segment_stream.max(initial=0))
        row[h.POOLS] = max(row[h.POOLS], 1 + initial.segment_pool.max(initial=0))
    row[h.DIVISIONS : h.DIVISIONS + 16] = settings.divisions
    return row


def _sources() -> int:
    """Return a number that changes if any file of this package changes."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return int.from_bytes(hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()[:4], "big")


def _compiled(sources: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the compiled functions that fill a heap and that replay a program.

    numba's cache on disk checks only the file of the cached function, so a change in another file would have no effect. It
    also checks the values in a function's closure. That is why both functions use ``sources``.
    """

    @entry
    def fill(heap: AllocatorState, initial: InitialState) -> Any:
        fill_heap(heap, initial)
        return sources

    @lean_entry
    def run(
        heap: AllocatorState,
        op: npt.NDArray[np.uint8],
        item: npt.NDArray[np.int32],
        size_bytes: IntArray,
        stream: npt.NDArray[np.int32],
        pool: npt.NDArray[np.int32],
        event: IntArray,
        progress: IntArray,
        leave_out_prologue: bool,
        stop_at_oom: bool,
        read: IntArray,
    ) -> Any:
        """Replay from operation ``progress[0]`` to the end, to an error, or until there may be too few records."""
        counts = heap.counts
        while progress[0] < op.shape[0] and counts[STOPPED] == 0 and has_room(heap):
            i = progress[0]
            what, address = op[i], -1
            own, of_pool = int64(item[i]), int64(pool[i])  # one type: each further type is compiled again
            if leave_out_prologue and event[i] < 0:
                pass
            elif what == ALLOC:
                if allocate(heap, own, int64(size_bytes[i]), int64(stream[i]), of_pool):
                    address = heap.blocks[heap.block_of[own], 0]
                elif progress[1] < 0 and counts[STOPPED] == 0:
                    progress[1] = i
            elif what == FREE:
                free_at_once(heap, own)
            elif what == FREE_REQUESTED:
                free_later(heap, own)
            elif what == FREE_COMPLETED:
                free_now(heap, own)
            elif what == EMPTY_CACHE:
                release_cached(heap)
            elif what == POOL_FREEABLE:
                heap.pools[of_pool, FREEABLE] = 1
            elif what == EMPTY_POOL and heap.pools[of_pool, FREEABLE]:
                empty_pool(heap, of_pool)
            progress[0] += 1
            if read.shape[0]:
                read[i, 0] = address
                for statistic in range(read.shape[1] - 1):
                    read[i, 1 + statistic] = counts[statistic]
            if stop_at_oom and progress[1] >= 0:
                break
        return sources

    return fill, run


_fill, _run = _compiled(_sources())
