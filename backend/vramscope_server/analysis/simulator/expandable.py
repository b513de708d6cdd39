"""Expandable segments: ranges of reserved addresses for each pool and stream, to which memory is mapped page by page."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.simulator.blocks import (
    is_large,
    is_split,
    link_after,
    link_before,
    list_free,
    list_unmapped,
    merge_neighbours,
    piece_of,
    pool_of,
    unlist_free,
    unlist_unmapped,
)
from vramscope_server.analysis.simulator.free_lists import first, following
from vramscope_server.analysis.simulator.heap import (
    ADDRESS,
    FREE,
    HAZARDS,
    LARGE_SEGMENT,
    LIST,
    NEXT,
    ODD_PAGE,
    ORIGIN,
    PAGE,
    PREVIOUS,
    RANK,
    RESERVATION_BYTES,
    RESERVE_BOUNDS_REQUESTS,
    SIZE,
    STATE,
    STOPPED,
    UNMAPPED,
    AllocatorState,
    compiled,
    give_back,
    new_record,
    next_rank,
    unmapped_list,
)
from vramscope_server.analysis.simulator.segments import GRANULE, charge, next_address, note_reserved


@compiled
def is_spare(heap: AllocatorState, block: int) -> Any:
    """Return True if a block is free or unmapped."""
    return block != 0 and (heap.blocks[block, STATE] == FREE or heap.blocks[block, STATE] == UNMAPPED)


@compiled
def new_expandable(heap: AllocatorState, block_list: int, size: int) -> Any:
    """Return a mapped free block of at least ``size`` bytes, which is in no list; 0 if there is not enough memory.

    The block comes from the lowest range of spare blocks that is long enough. Without one, new addresses are reserved. If
    the device is full before the whole range is mapped, the pages that were mapped stay mapped.
    """
    blocks = heap.blocks
    block = spare_stretch(heap, block_list, size)
    if not block:
        if heap.settings[RESERVE_BOUNDS_REQUESTS] and size > reserved_bytes(heap, block_list):
            return 0
        block = new_reservation(heap, block_list)
    if blocks[block, STATE] == UNMAPPED and not map_pages(heap, block, min(blocks[block, SIZE], size)):
        return 0
    while blocks[block, SIZE] < size:
        behind = blocks[block, NEXT]  # unmapped, because neighbouring free blocks are always merged
        if not behind or blocks[behind, STATE] != UNMAPPED:
            return 0  # the request is larger than one reservation
        if not map_pages(heap, behind, min(size - blocks[block, SIZE], blocks[behind, SIZE])):
            return 0
        block = behind  # map_pages merged the block before into it
    unlist_free(heap, block)
    return block


@compiled
def spare_stretch(heap: AllocatorState, block_list: int, size: int) -> Any:
    """Return the first block of the lowest range of spare blocks with ``size`` bytes in total; 0 if there is none."""
    blocks, head = heap.blocks, unmapped_list(block_list)
    unmapped = first(heap, head)
    while unmapped:
        start = unmapped
        if is_spare(heap, blocks[unmapped, PREVIOUS]):
            start = blocks[unmapped, PREVIOUS]
        total, block = 0, start
        while total < size and is_spare(heap, block):
            total += blocks[block, SIZE]
            block = blocks[block, NEXT]
        if total >= size:
            return start
        unmapped = following(heap, head, unmapped)
    return 0


@compiled
def reserved_bytes(heap: AllocatorState, block_list: int) -> Any:
    """Return the bytes of addresses that a new expandable segment reserves, in whole pages."""
    page = heap.settings[LARGE_SEGMENT] if is_large(heap, block_list) else GRANULE
    return (heap.settings[RESERVATION_BYTES] + page - 1) // page * page


@compiled
def new_reservation(heap: AllocatorState, block_list: int) -> Any:
    """Reserve addresses without memory. Return them as one block, in the list of unmapped blocks."""
    blocks, settings = heap.blocks, heap.settings
    page = settings[LARGE_SEGMENT] if is_large(heap, block_list) else GRANULE
    block = new_record(heap)
    blocks[block, ADDRESS] = next_address(heap)
    blocks[block, SIZE] = reserved_bytes(heap, block_list)
    blocks[block, LIST] = block_list
    blocks[block, RANK] = next_rank(heap)
    blocks[block, PAGE] = page
    blocks[block, ORIGIN] = blocks[block, ADDRESS]
    list_unmapped(heap, block)
    return block


@compiled
def map_pages(heap: AllocatorState, block: int, size: int) -> Any:
    """Map memory to the first ``size`` bytes of an unmapped block, in whole pages.

    Return False, with nothing mapped, if the device has too little memory. Otherwise the block merges with its free
    neighbours, and is in its free list.
    """
    blocks = heap.blocks
    page, offset = blocks[block, PAGE], blocks[block, ADDRESS] - blocks[block, ORIGIN]
    if page % GRANULE:  # the driver refuses such a page, and PyTorch raises the driver's error
        heap.counts[HAZARDS] |= ODD_PAGE
        heap.counts[STOPPED] = 1
        return False
    mapped = (offset + size + page - 1) // page * page - offset
    if not charge(heap, mapped):
        return False
    unlist_unmapped(heap, block)
    rest = blocks[block, SIZE] - mapped
    if rest > 0:
        tail = piece_of(heap, block, blocks[block, ADDRESS] + mapped, rest)
        link_after(heap, tail, block)
        list_unmapped(heap, tail)
        blocks[block, SIZE] = mapped
    merge_neighbours(heap, block, FREE)
    list_free(heap, block)
    note_reserved(heap, pool_of(heap, block), mapped)
    return True


@compiled
def unmap_pages(heap: AllocatorState, block: int) -> None:
    """Unmap the whole pages in a free block. The parts before and after them stay free.

    A reservation without any mapped memory is released.
    """
    blocks = heap.blocks
    page, origin = blocks[block, PAGE], blocks[block, ORIGIN]
    start, end = blocks[block, ADDRESS], blocks[block, ADDRESS] + blocks[block, SIZE]
    low = origin + (start - origin + page - 1) // page * page
    high = origin + (end - origin) // page * page
    if low >= high:
        return
    unlist_free(heap, block)
    blocks[block, ADDRESS] = low
    blocks[block, SIZE] = high - low
    if low > start:
        piece = piece_of(heap, block, start, low - start)
        link_before(heap, piece, block)
        list_free(heap, piece)
    if end > high:
        piece = piece_of(heap, block, high, end - high)
        link_after(heap, piece, block)
        list_free(heap, piece)
    merge_neighbours(heap, block, UNMAPPED)
    list_unmapped(heap, block)
    note_reserved(heap, pool_of(heap, block), low - high)
    if not is_split(heap, block):
        unlist_unmapped(heap, block)
        give_back(heap, block)
