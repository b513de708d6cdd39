"""Returns cached memory to the device: large blocks, all of it, or segments that were unused for a long time."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.simulator.blocks import is_split, pool_of, set_free
from vramscope_server.analysis.simulator.expandable import unmap_pages
from vramscope_server.analysis.simulator.free_lists import first, first_of_size, following, last_below_size, preceding
from vramscope_server.analysis.simulator.heap import (
    ACTIVE,
    ACTIVE_BYTES,
    BORN,
    COLLECT_ABOVE,
    FREEABLE,
    INFINITE,
    ITEM,
    LEFT,
    MAX_SPLIT,
    PAGE,
    POOLS,
    REQUESTED,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    RIGHT,
    SEARCHES_LARGE,
    SIZE,
    STOPPED,
    STREAMS,
    SYNCS,
    AllocatorState,
    compiled,
    free_list,
    pending_ring,
)
from vramscope_server.analysis.simulator.segments import free_segment


@compiled
def complete(heap: AllocatorState, block: int) -> None:
    """Free a block that no stream uses any more."""
    blocks, counts = heap.blocks, heap.counts
    heap.block_of[blocks[block, ITEM]] = 0
    counts[ACTIVE] -= 1
    counts[ACTIVE_BYTES] -= blocks[block, SIZE]
    counts[REQUESTED_BYTES] -= blocks[block, REQUESTED]
    set_free(heap, block)


@compiled
def complete_pending(heap: AllocatorState, block: int) -> None:
    """Free a pending block: all other streams are done with it."""
    blocks = heap.blocks
    before, behind = blocks[block, LEFT], blocks[block, RIGHT]
    blocks[before, RIGHT] = behind
    blocks[behind, LEFT] = before
    blocks[block, LEFT] = 0
    blocks[block, RIGHT] = 0
    complete(heap, block)


@compiled
def release_oversize(heap: AllocatorState, block_list: int, size: int) -> Any:
    """Return one free block of at least max_split_size that is large enough, or several. PyTorch tries this before all else.

    Returns True if that was enough. Otherwise the blocks are returned all the same.
    """
    blocks, max_split, head = heap.blocks, heap.settings[MAX_SPLIT], free_list(block_list)
    if max_split == INFINITE:
        return False
    enough = max(size, max_split)
    block = first_of_size(heap, head, enough)
    if block and blocks[block, PAGE] == 0:
        free_segment(heap, block)
        return True
    block = preceding(heap, head, block) if block else last_below_size(heap, head, enough)
    released = 0
    while block and released < enough and blocks[block, SIZE] >= max_split and not heap.counts[STOPPED]:
        before = preceding(heap, head, block)
        if blocks[block, PAGE] == 0:
            released += blocks[block, SIZE]
            free_segment(heap, block)
        block = before
    return released >= enough


@compiled
def release_list(heap: AllocatorState, block_list: int) -> None:
    """Return each free block that is a whole segment, and the free pages of expandable segments."""
    blocks, head = heap.blocks, free_list(block_list)
    block = first(heap, head)
    while block and not heap.counts[STOPPED]:
        behind = following(heap, head, block)
        if blocks[block, PAGE] == 0 and not is_split(heap, block):
            free_segment(heap, block)
        block = behind
    # Pieces left by unmapping are smaller than a page; visiting them again changes nothing.
    block = first(heap, head)
    while block and not heap.counts[STOPPED]:
        behind = following(heap, head, block)
        if blocks[block, PAGE]:
            unmap_pages(heap, block)
        block = behind


@compiled
def release_pool(heap: AllocatorState, pool: int) -> None:
    for block_list in range(2 * pool * heap.settings[STREAMS], 2 * (pool + 1) * heap.settings[STREAMS]):
        release_list(heap, block_list)


@compiled
def release_cached(heap: AllocatorState) -> None:
    """Wait for all streams, then return all free memory of the default pool and of unused private pools."""
    heap.counts[SYNCS] += 1
    ring = pending_ring(heap)
    while heap.blocks[ring, RIGHT] != ring:
        complete_pending(heap, heap.blocks[ring, RIGHT])
    release_pool(heap, 0)
    for pool in range(1, heap.settings[POOLS]):
        if heap.pools[pool, FREEABLE]:
            release_pool(heap, pool)


@compiled
def empty_pool(heap: AllocatorState, pool: int) -> None:
    """Wait for the blocks of an unused private pool, and return them."""
    heap.counts[SYNCS] += 1
    ring = pending_ring(heap)
    block = heap.blocks[ring, RIGHT]
    while block != ring:
        behind = heap.blocks[block, RIGHT]
        if pool_of(heap, block) == pool:
            complete_pending(heap, block)
        block = behind
    release_pool(heap, pool)


@compiled
def collect_garbage(heap: AllocatorState) -> None:
    """Above the threshold, return whole segments of the default large pool that were free for longer than the mean.

    Each pass is completed, even if enough was returned before its end.
    """
    blocks, counts, settings = heap.blocks, heap.counts, heap.settings
    wanted = counts[RESERVED_BYTES] - settings[COLLECT_ABOVE]
    if wanted <= 0:
        return
    searches = heap.pools[0, SEARCHES_LARGE]
    ages, count = 0, 0
    lists = range(settings[STREAMS], 2 * settings[STREAMS])
    for block_list in lists:
        block = first(heap, free_list(block_list))
        while block:
            if not is_split(heap, block):
                ages += searches - blocks[block, BORN]
                count += 1
            block = following(heap, free_list(block_list), block)
    released = 0
    freed = True
    while released < wanted and freed and count > 0:
        mean = ages / count
        freed = False
        for block_list in lists:
            block = first(heap, free_list(block_list))
            while block:
                behind = following(heap, free_list(block_list), block)
                age = searches - blocks[block, BORN]
                if not is_split(heap, block) and blocks[block, PAGE] == 0 and age >= mean:
                    freed = True
                    released += blocks[block, SIZE]
                    ages -= age
                    count -= 1
                    free_segment(heap, block)
                block = behind
