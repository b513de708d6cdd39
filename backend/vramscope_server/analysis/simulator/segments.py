"""Segments: memory that comes from the device, its addresses, and its return."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.blocks import is_split, pool_of, unlist_free
from vramscope_server.analysis.simulator.heap import (
    ADDRESS,
    ADDRESS_ORDER,
    ADDRESSES_USED,
    DEVICE_ALLOCATIONS,
    DEVICE_ALLOCS,
    DEVICE_BYTES,
    DEVICE_FREES,
    DEVICE_USED,
    HAZARDS,
    INTERIOR_FREE,
    LARGE_SEGMENT,
    LIST,
    MAX_SPLIT,
    MIB,
    OVERSIZE_SEGMENTS,
    PAGE,
    PEAK_RESERVED,
    POOL_MISCOUNT,
    RANK,
    RESERVED_BYTES,
    SEGMENT,
    SIZE,
    STOPPED,
    AllocatorState,
    compiled,
    give_back,
    new_record,
    next_rank,
)

SMALL_MOST = MIB
"""Largest rounded size of the small pool."""
GRANULE = 2 * MIB
"""Segment size of the small pool, rounding unit of large segments, and allocation unit of the driver."""
OWN_SEGMENT = 10 * MIB
"""Smallest rounded size that gets a segment of its own."""
SLOT_BITS = 43
"""Made-up addresses give each segment 8 TiB, so that only their order matters."""
SLOTS = 1 << 19


@compiled
def segment_size(settings: IntArray, size: int) -> Any:
    """Return the bytes of a new segment for a block of ``size`` (rounded) bytes."""
    if size <= SMALL_MOST:
        return GRANULE
    if size < OWN_SEGMENT:
        return settings[LARGE_SEGMENT]
    return (size + GRANULE - 1) // GRANULE * GRANULE


@compiled
def next_address(heap: AllocatorState) -> Any:
    """Return the address of the next segment: as recorded, or made up in the chosen address order."""
    made = heap.counts[ADDRESSES_USED]
    heap.counts[ADDRESSES_USED] += 1
    if made < heap.addresses.shape[0]:
        return heap.addresses[made]
    slot = made & (SLOTS - 1)
    if heap.settings[ADDRESS_ORDER] == 1:
        slot = SLOTS - 1 - slot
    elif heap.settings[ADDRESS_ORDER] == 2:
        slot = (slot * 0x2545F + 0x1B873) & (SLOTS - 1)  # the factor is odd, so that each slot is used once
        slot ^= slot >> 9
    return (slot + 1) << SLOT_BITS


@compiled
def charge(heap: AllocatorState, size: int) -> Any:
    """Take bytes from the device. Returns False if it has too few."""
    whole = (size + GRANULE - 1) // GRANULE * GRANULE
    if heap.counts[DEVICE_USED] + whole > heap.settings[DEVICE_BYTES]:
        return False
    heap.counts[DEVICE_USED] += whole
    return True


@compiled
def note_reserved(heap: AllocatorState, pool: int, size: int) -> None:
    """Count bytes that one call took from the device, or (negative) returned to it."""
    counts = heap.counts
    counts[RESERVED_BYTES] += size
    counts[PEAK_RESERVED] = max(counts[PEAK_RESERVED], counts[RESERVED_BYTES])
    if size > 0:
        counts[DEVICE_ALLOCS] += 1
    else:
        counts[DEVICE_USED] -= (GRANULE - 1 - size) // GRANULE * GRANULE
        counts[DEVICE_FREES] += 1
        if pool:
            # PyTorch counts mapped memory once for each request and uncounts it once for each piece; its own assertion fails then.
            if heap.pools[pool, DEVICE_ALLOCATIONS] <= 0:
                counts[HAZARDS] |= POOL_MISCOUNT
                counts[STOPPED] = 1
            heap.pools[pool, DEVICE_ALLOCATIONS] -= 1


@compiled
def new_segment(heap: AllocatorState, block_list: int, size: int) -> Any:
    """Return a new segment as one block that is in no list; 0 if the device is full."""
    blocks, counts = heap.blocks, heap.counts
    if not charge(heap, size):
        return 0
    block = new_record(heap)
    blocks[block, ADDRESS] = next_address(heap)
    blocks[block, SIZE] = size
    blocks[block, LIST] = block_list
    blocks[block, RANK] = next_rank(heap)
    note_reserved(heap, pool_of(heap, block), size)
    counts[SEGMENT] += 1
    if size >= heap.settings[MAX_SPLIT]:
        counts[OVERSIZE_SEGMENTS] += 1
    return block


@compiled
def free_segment(heap: AllocatorState, block: int) -> None:
    """Return a free block with cudaFree. The replay ends if it is only a part of a segment, which CUDA does not know."""
    counts = heap.counts
    if is_split(heap, block) or heap.blocks[block, PAGE]:
        counts[HAZARDS] |= INTERIOR_FREE
        counts[STOPPED] = 1
        return
    size = heap.blocks[block, SIZE]
    unlist_free(heap, block)
    note_reserved(heap, pool_of(heap, block), -size)
    counts[SEGMENT] -= 1
    if size >= heap.settings[MAX_SPLIT]:
        counts[OVERSIZE_SEGMENTS] -= 1
    give_back(heap, block)
