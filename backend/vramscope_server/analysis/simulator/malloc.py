"""Allocating and freeing: from the request to the block, and back."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.numba_compile import int64
from vramscope_server.analysis.simulator.blocks import is_large, take, unlist_free
from vramscope_server.analysis.simulator.expandable import new_expandable
from vramscope_server.analysis.simulator.free_lists import first_of_size, following
from vramscope_server.analysis.simulator.heap import (
    ACTIVE,
    ACTIVE_BYTES,
    ALLOCATED,
    ALLOCATED_BYTES,
    ALLOCATION,
    COLLECT_ABOVE,
    DEVICE_ALLOCATIONS,
    DIVISIONS,
    EXPANDABLE,
    FREEABLE,
    HAZARDS,
    ITEM,
    LEFT,
    LIMIT,
    MAX_SPLIT,
    MIB,
    NEXT,
    NON_SPLIT_ROUNDING,
    OOMS,
    OVERSIZE_ALLOCATIONS,
    PAGE,
    PASSED_OVER,
    PEAK_ACTIVE,
    PEAK_ALLOCATED,
    PEAK_REQUESTED,
    PENDING,
    POOL_IS_CAPTURE,
    REJECT_ABOVE,
    REJECTIONS,
    REQUESTED,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    RETRIES,
    RIGHT,
    SEARCHES_SMALL,
    SIZE,
    STATE,
    STOPPED,
    STREAMS,
    UNBOUNDED_GROWTH,
    UNMAPPED,
    Heap,
    compiled,
    free_list,
    pending_ring,
)
from vramscope_server.analysis.simulator.release import (
    collect_garbage,
    complete,
    complete_pending,
    release_cached,
    release_oversize,
)
from vramscope_server.analysis.simulator.rounding import rounded
from vramscope_server.analysis.simulator.segments import SMALL_MOST, new_segment, segment_size

REJECTED = -1


@compiled
def allocate(heap: Heap, item: int, requested: int, stream: int, pool: int) -> Any:
    """Find or make a block for a request. Whether there is one: else it is out of memory."""
    blocks, counts, settings = heap.blocks, heap.counts, heap.settings
    size = rounded(requested, settings[DIVISIONS : DIVISIONS + 16])
    block_list = (2 * pool + (size > SMALL_MOST)) * settings[STREAMS] + stream
    heap.pools[pool, FREEABLE] = 0
    block = search(heap, block_list, size)
    if block == 0:
        if settings[COLLECT_ABOVE] >= 0:
            collect_garbage(heap)
        block = new_memory(heap, block_list, size)
        if block == 0 and not counts[STOPPED] and release_oversize(heap, block_list, size):
            block = new_memory(heap, block_list, size)
        if block == 0 and not counts[STOPPED] and not (pool and settings[POOL_IS_CAPTURE]):
            release_cached(heap)
            counts[RETRIES] += 1
            block = new_memory(heap, block_list, size)
        if counts[STOPPED]:
            return False
        if block == REJECTED:
            counts[REJECTIONS] += 1
            return False
        if block == 0:
            counts[OOMS] += 1
            return False
    rest = blocks[block, SIZE] - size
    if settings[EXPANDABLE] or not is_large(heap, block_list):
        split = rest >= 512
    else:
        split = size < settings[MAX_SPLIT] and rest > MIB
    block = take(heap, block, size, split)
    blocks[block, STATE] = ALLOCATED
    blocks[block, REQUESTED] = requested
    blocks[block, ITEM] = item
    heap.block_of[item] = block
    size = blocks[block, SIZE]
    counts[ALLOCATION] += 1
    counts[ALLOCATED_BYTES] += size
    counts[ACTIVE] += 1
    counts[ACTIVE_BYTES] += size
    counts[REQUESTED_BYTES] += requested
    counts[PEAK_ALLOCATED] = max(counts[PEAK_ALLOCATED], counts[ALLOCATED_BYTES])
    counts[PEAK_ACTIVE] = max(counts[PEAK_ACTIVE], counts[ACTIVE_BYTES])
    counts[PEAK_REQUESTED] = max(counts[PEAK_REQUESTED], counts[REQUESTED_BYTES])
    if size >= settings[MAX_SPLIT]:
        counts[OVERSIZE_ALLOCATIONS] += 1
    return True


@compiled
def search(heap: Heap, block_list: int, size: int) -> Any:
    """The best fit among the free blocks, taken out of its list; 0: none may be used."""
    blocks, settings, head = heap.blocks, heap.settings, free_list(block_list)
    if settings[COLLECT_ABOVE] >= 0:
        pool = block_list // settings[STREAMS] // 2
        heap.pools[pool, SEARCHES_SMALL + is_large(heap, block_list)] += 1
    block = first_of_size(heap, head, size)
    if block and blocks[block, PAGE]:
        if settings[EXPANDABLE]:
            # The one that could grow least: an expandable block counts with the unmapped addresses behind it.
            other = following(heap, head, block)
            while blocks[block, PAGE] and other and size_if_grown(heap, other) < size_if_grown(heap, block):
                block, other = other, following(heap, head, other)
        else:
            while block and blocks[block, PAGE]:
                block = following(heap, head, block)
    if not block:
        return 0
    if size < settings[MAX_SPLIT] and blocks[block, SIZE] >= settings[MAX_SPLIT]:
        if blocks[block, PAGE]:
            heap.counts[HAZARDS] |= UNBOUNDED_GROWTH
            heap.counts[PASSED_OVER] += 1
        return 0
    if size >= settings[MAX_SPLIT] and blocks[block, SIZE] >= size + settings[NON_SPLIT_ROUNDING]:
        return 0
    unlist_free(heap, block)
    return block


@compiled
def size_if_grown(heap: Heap, block: int) -> Any:
    behind = heap.blocks[block, NEXT]
    if behind and heap.blocks[behind, STATE] == UNMAPPED:
        return heap.blocks[block, SIZE] + heap.blocks[behind, SIZE]
    return heap.blocks[block, SIZE]


@compiled
def new_memory(heap: Heap, block_list: int, size: int) -> Any:
    """A block of new memory, in no list; 0: limit or device do not allow it; REJECTED: refused before that."""
    settings, reserved = heap.settings, heap.counts[RESERVED_BYTES]
    asked = segment_size(settings, size)
    if reserved + asked > settings[LIMIT]:
        return 0
    if reserved + asked > settings[REJECT_ABOVE]:
        return REJECTED
    if settings[EXPANDABLE]:
        block = new_expandable(heap, block_list, size)
    else:
        block = new_segment(heap, block_list, asked)
    pool = block_list // settings[STREAMS] // 2
    if block and pool:
        heap.pools[pool, DEVICE_ALLOCATIONS] += 1
    return block


@compiled
def request_free(heap: Heap, block: int) -> None:
    """What is booked when the client lets go, whether other streams still use the block or not."""
    counts, size = heap.counts, heap.blocks[block, SIZE]
    counts[ALLOCATION] -= 1
    counts[ALLOCATED_BYTES] -= size
    if size >= heap.settings[MAX_SPLIT]:
        counts[OVERSIZE_ALLOCATIONS] -= 1


@compiled
def free_at_once(heap: Heap, item: int) -> None:
    block = int64(heap.block_of[item])
    if block:
        request_free(heap, block)
        complete(heap, block)


@compiled
def free_later(heap: Heap, item: int) -> None:
    """The client lets go; other streams still use the block."""
    block = int64(heap.block_of[item])
    if block:
        request_free(heap, block)
        join_pending(heap, block)


@compiled
def join_pending(heap: Heap, block: int) -> None:
    """At the end of the ring of those that wait."""
    blocks, ring = heap.blocks, pending_ring(heap)
    last = blocks[ring, LEFT]
    blocks[block, STATE] = PENDING
    blocks[block, LEFT] = last
    blocks[block, RIGHT] = ring
    blocks[last, RIGHT] = block
    blocks[ring, LEFT] = block


@compiled
def free_now(heap: Heap, item: int) -> None:
    """The other streams are done; nothing to do where a release has waited for them already."""
    block = int64(heap.block_of[item])
    if block and heap.blocks[block, STATE] == PENDING:
        complete_pending(heap, block)
