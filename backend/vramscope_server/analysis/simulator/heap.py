"""State of the simulated allocator as arrays of int64, for numba: records of blocks, counters, pools and settings.

A record is a row of ``blocks``. A link of 0 means "none", so row 0 is never used. The next rows are the heads of the free
lists. All further rows are blocks; unused rows are kept in a list of their own.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import lean

MIB: Final = 1 << 20
INFINITE: Final = 1 << 62
"""More than any number of bytes: no limit."""

# ---- columns of a block's record ----
ADDRESS: Final = 0
SIZE: Final = 1
REQUESTED: Final = 2
PREVIOUS: Final = 3
"""Previous block in the same segment; in an unused record, the next unused record."""
NEXT: Final = 4
LEFT: Final = 5
RIGHT: Final = 6
"""Children in the tree of a free list; in a pending block, its neighbours in the ring of pending blocks."""
STATE: Final = 7
LIST: Final = 8
"""(pool * 2 + large) * streams + stream"""
RANK: Final = 9
"""Rank by age of the segment or the block; 0 if the version does not compare ages."""
PAGE: Final = 10
"""Bytes of a page of an expandable segment; 0 for a segment of cudaMalloc."""
ORIGIN: Final = 11
"""Start address of the expandable segment."""
BORN: Final = 12
"""Number of searches in its pool when it became free."""
ITEM: Final = 13
"""Allocation of the program that uses the block."""
COLUMNS: Final = 14

FREE: Final = 0
ALLOCATED: Final = 1
PENDING: Final = 2
"""Freed by the program, but another stream may still use it."""
UNMAPPED: Final = 3
"""Addresses of an expandable segment that have no memory."""

# ---- counters; the first STATISTICS of them are PyTorch's statistics, read after every operation if asked for ----
STATISTICS: Final = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "oversize_allocations",
    "oversize_segments",
    "num_alloc_retries",
    "num_ooms",
    "num_oom_rejections",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
)
"""PyTorch's names: current values, over small and large pools."""
(
    ALLOCATION,
    ALLOCATED_BYTES,
    ACTIVE,
    ACTIVE_BYTES,
    REQUESTED_BYTES,
    SEGMENT,
    RESERVED_BYTES,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    OVERSIZE_ALLOCATIONS,
    OVERSIZE_SEGMENTS,
    RETRIES,
    OOMS,
    REJECTIONS,
    SYNCS,
    DEVICE_ALLOCS,
    DEVICE_FREES,
) = range(len(STATISTICS))
PEAK_ALLOCATED: Final = 17
PEAK_ACTIVE: Final = 18
PEAK_RESERVED: Final = 19
PEAK_REQUESTED: Final = 20
DEVICE_USED: Final = 21
"""Bytes that this process has taken from the device."""
ADDRESSES_USED: Final = 22
UNUSED: Final = 23
"""First unused record."""
FRESH: Final = 24
"""First record that was never used."""
FREE_BLOCKS: Final = 25
"""Number of blocks in all free lists. A release may split each of them in three."""
HAZARDS: Final = 26
STOPPED: Final = 27
"""1: PyTorch's allocator would have raised an error that is not an out-of-memory error."""
PASSED_OVER: Final = 28
RANKS: Final = 29
"""Number of ranks in use."""
COUNTS: Final = 30

# ---- columns of a pool ----
SEARCHES_SMALL: Final = 0
SEARCHES_LARGE: Final = 1
DEVICE_ALLOCATIONS: Final = 2
"""Device allocations of a private pool, as PyTorch counts them."""
FREEABLE: Final = 3
POOL_COLUMNS: Final = 4

# ---- settings ----
MAX_SPLIT: Final = 0
NON_SPLIT_ROUNDING: Final = 1
LARGE_SEGMENT: Final = 2
EXPANDABLE: Final = 3
LIMIT: Final = 4
COLLECT_ABOVE: Final = 5
"""-1: no garbage collection"""
REJECT_ABOVE: Final = 6
DEVICE_BYTES: Final = 7
RESERVATION_BYTES: Final = 8
"""Addresses that an expandable segment reserves, before rounding up to pages."""
TIES: Final = 9
"""AllocatorVersion.ties as a number: BY_ADDRESS, BY_SEGMENT, BY_BLOCK."""
POOL_IS_CAPTURE: Final = 10
STREAMS: Final = 11
POOLS: Final = 12
ADDRESS_ORDER: Final = 13
RESERVE_BOUNDS_REQUESTS: Final = 14
DIVISIONS: Final = 15
"""First of 16 columns: the values of roundup_power2_divisions."""
SETTINGS: Final = 31

BY_ADDRESS: Final = 0
BY_SEGMENT: Final = 1
BY_BLOCK: Final = 2

# ---- hazards ----
INTERIOR_FREE: Final = 1
ODD_PAGE: Final = 2
POOL_MISCOUNT: Final = 4
UNBOUNDED_GROWTH: Final = 8


compiled: Final = lean
"""Decorator that compiles without reference counting. Every call passes the heap, and counting made a replay four times
slower."""


class AllocatorState(NamedTuple):
    """Arrays that the compiled code reads and writes."""

    blocks: IntArray
    """One row per record; grown by :func:`with_room`."""
    counts: IntArray
    pools: IntArray
    settings: IntArray
    addresses: IntArray
    """Addresses of the next segments, in order. If there are too few, further addresses are made up."""
    block_of: npt.NDArray[np.int32]
    """Block of each allocation; 0 before the allocation and after its free."""


def empty_heap(settings: IntArray, *, items: int, room: int, addresses: IntArray) -> AllocatorState:
    """Return an empty heap with records for ``room`` blocks, for a program with this number of allocations."""
    lists = 2 * int(settings[POOLS]) * int(settings[STREAMS])
    pending = 1 + 2 * lists  # a head of the free and one of the unmapped blocks for each list
    counts = np.zeros(COUNTS, np.int64)
    counts[FRESH] = pending + 1
    blocks = np.zeros((pending + 1 + room, COLUMNS), np.int64)
    blocks[pending, LEFT] = blocks[pending, RIGHT] = pending
    return AllocatorState(
        blocks=blocks,
        counts=counts,
        pools=np.zeros((int(settings[POOLS]), POOL_COLUMNS), np.int64),
        settings=settings,
        addresses=addresses,
        block_of=np.zeros(items, np.int32),
    )


def with_room(heap: AllocatorState) -> AllocatorState:
    """Return the heap with half as many records again, and at least enough for a release that splits every free block."""
    rows = len(heap.blocks)
    more = max(rows // 2, 3 * int(heap.counts[FREE_BLOCKS]), 1024)
    blocks = np.zeros((rows + more, COLUMNS), np.int64)
    blocks[:rows] = heap.blocks
    return heap._replace(blocks=blocks)


@compiled
def has_room(heap: AllocatorState) -> Any:
    """Return True if there are enough records for any single operation."""
    return heap.counts[FRESH] + 2 * heap.counts[FREE_BLOCKS] + 8 < heap.blocks.shape[0]


@compiled
def pending_ring(heap: AllocatorState) -> Any:
    """Return the record that heads the circular list of pending blocks."""
    return 1 + 4 * heap.settings[POOLS] * heap.settings[STREAMS]


@compiled
def free_list(block_list: int) -> Any:
    """Return the head of a list's free blocks."""
    return 1 + 2 * block_list


@compiled
def unmapped_list(block_list: int) -> Any:
    """Return the head of a list's unmapped blocks."""
    return 2 + 2 * block_list


@compiled
def new_record(heap: AllocatorState) -> Any:
    """Return an unused record, filled with zeros."""
    blocks, counts = heap.blocks, heap.counts
    record = counts[UNUSED]
    if record:
        counts[UNUSED] = blocks[record, PREVIOUS]
        for column in range(COLUMNS):
            blocks[record, column] = 0
    else:
        record = counts[FRESH]
        counts[FRESH] += 1
    return record


@compiled
def give_back(heap: AllocatorState, record: int) -> None:
    heap.blocks[record, PREVIOUS] = heap.counts[UNUSED]
    heap.counts[UNUSED] = record


@compiled
def next_rank(heap: AllocatorState) -> Any:
    """Return the rank of a new segment or block; always 0 if the version does not compare ages."""
    if heap.settings[TIES] != BY_ADDRESS:
        heap.counts[RANKS] += 1
    return heap.counts[RANKS]
