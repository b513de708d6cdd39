"""Allocates and frees the block of one request, and updates the counters."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.numba_compile import int64
from vramscope_server.analysis.simulator.block_search import REJECTED, new_memory, search
from vramscope_server.analysis.simulator.blocks import is_large, take
from vramscope_server.analysis.simulator.heap import (
    ACTIVE,
    ACTIVE_BYTES,
    ALLOCATED,
    ALLOCATED_BYTES,
    ALLOCATION,
    COLLECT_ABOVE,
    DIVISIONS,
    EXPANDABLE,
    FREEABLE,
    ITEM,
    LEFT,
    MAX_SPLIT,
    MIB,
    OOMS,
    OVERSIZE_ALLOCATIONS,
    PEAK_ACTIVE,
    PEAK_ALLOCATED,
    PEAK_REQUESTED,
    PENDING,
    POOL_IS_CAPTURE,
    REJECTIONS,
    REQUESTED,
    REQUESTED_BYTES,
    RETRIES,
    RIGHT,
    SIZE,
    STATE,
    STOPPED,
    STREAMS,
    AllocatorState,
    compiled,
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
from vramscope_server.analysis.simulator.segments import SMALL_MOST


@compiled
def allocate(heap: AllocatorState, item: int, requested: int, stream: int, pool: int) -> Any:
    """Find or make a block for a request. Return False at an out-of-memory error, or if the replay stopped."""
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
def request_free(heap: AllocatorState, block: int) -> None:
    """Update the counters when the program frees a block. Other streams may still use it."""
    counts, size = heap.counts, heap.blocks[block, SIZE]
    counts[ALLOCATION] -= 1
    counts[ALLOCATED_BYTES] -= size
    if size >= heap.settings[MAX_SPLIT]:
        counts[OVERSIZE_ALLOCATIONS] -= 1


@compiled
def free_at_once(heap: AllocatorState, item: int) -> None:
    """Free a block that no other stream uses."""
    block = int64(heap.block_of[item])
    if block:
        request_free(heap, block)
        complete(heap, block)


@compiled
def free_later(heap: AllocatorState, item: int) -> None:
    """Free a block that other streams still use: it stays pending until they are done."""
    block = int64(heap.block_of[item])
    if block:
        request_free(heap, block)
        join_pending(heap, block)


@compiled
def join_pending(heap: AllocatorState, block: int) -> None:
    """Append a block to the circular list of pending blocks."""
    blocks, ring = heap.blocks, pending_ring(heap)
    last = blocks[ring, LEFT]
    blocks[block, STATE] = PENDING
    blocks[block, LEFT] = last
    blocks[block, RIGHT] = ring
    blocks[last, RIGHT] = block
    blocks[ring, LEFT] = block


@compiled
def free_now(heap: AllocatorState, item: int) -> None:
    """Complete the free of a pending block. Do nothing if a release has waited for its streams already."""
    block = int64(heap.block_of[item])
    if block and heap.blocks[block, STATE] == PENDING:
        complete_pending(heap, block)
