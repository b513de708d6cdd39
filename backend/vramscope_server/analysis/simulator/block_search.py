"""Chooses the block for a request: the best fit among the free blocks, or new memory of the device."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.simulator.blocks import is_large, unlist_free
from vramscope_server.analysis.simulator.expandable import new_expandable
from vramscope_server.analysis.simulator.free_lists import first_of_size, following
from vramscope_server.analysis.simulator.heap import (
    COLLECT_ABOVE,
    DEVICE_ALLOCATIONS,
    EXPANDABLE,
    HAZARDS,
    LIMIT,
    MAX_SPLIT,
    NEXT,
    NON_SPLIT_ROUNDING,
    PAGE,
    PASSED_OVER,
    REJECT_ABOVE,
    RESERVED_BYTES,
    SEARCHES_SMALL,
    SIZE,
    STATE,
    STREAMS,
    UNBOUNDED_GROWTH,
    UNMAPPED,
    AllocatorState,
    compiled,
    free_list,
)
from vramscope_server.analysis.simulator.segments import new_segment, segment_size

REJECTED = -1
"""Result if a limit refuses the request before any call to the device."""


@compiled
def search(heap: AllocatorState, block_list: int, size: int) -> Any:
    """Remove the best fit from its free list and return it; 0 if no free block may be used."""
    blocks, settings, head = heap.blocks, heap.settings, free_list(block_list)
    if settings[COLLECT_ABOVE] >= 0:
        pool = block_list // settings[STREAMS] // 2
        heap.pools[pool, SEARCHES_SMALL + is_large(heap, block_list)] += 1
    block = first_of_size(heap, head, size)
    if block and blocks[block, PAGE]:
        if settings[EXPANDABLE]:
            # Choose the block that could grow least: an expandable block can grow into the unmapped addresses after it.
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
def size_if_grown(heap: AllocatorState, block: int) -> Any:
    """Return the size of a block plus the unmapped addresses after it, into which it can grow."""
    behind = heap.blocks[block, NEXT]
    if behind and heap.blocks[behind, STATE] == UNMAPPED:
        return heap.blocks[block, SIZE] + heap.blocks[behind, SIZE]
    return heap.blocks[block, SIZE]


@compiled
def new_memory(heap: AllocatorState, block_list: int, size: int) -> Any:
    """Return a block of new memory, which is in no list. 0: the limit or the device does not allow it.

    REJECTED: throw_on_cudamalloc_oom refuses the request.
    """
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
