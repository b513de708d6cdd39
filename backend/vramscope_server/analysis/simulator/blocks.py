"""Splits and merges the blocks of a segment, and keeps free and unmapped blocks in their lists."""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.simulator.free_lists import insert, remove
from vramscope_server.analysis.simulator.heap import (
    ADDRESS,
    BORN,
    BY_BLOCK,
    FREE,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    LIST,
    NEXT,
    ORIGIN,
    PAGE,
    PREVIOUS,
    RANK,
    SEARCHES_SMALL,
    SIZE,
    STATE,
    STREAMS,
    TIES,
    UNMAPPED,
    AllocatorState,
    compiled,
    free_list,
    give_back,
    new_record,
    next_rank,
    unmapped_list,
)


@compiled
def pool_of(heap: AllocatorState, block: int) -> Any:
    return heap.blocks[block, LIST] // heap.settings[STREAMS] // 2


@compiled
def is_large(heap: AllocatorState, block_list: int) -> Any:
    return (block_list // heap.settings[STREAMS]) & 1


@compiled
def is_split(heap: AllocatorState, block: int) -> Any:
    """Return True if a block is only a part of its segment."""
    return heap.blocks[block, PREVIOUS] != 0 or heap.blocks[block, NEXT] != 0


@compiled
def list_free(heap: AllocatorState, block: int) -> None:
    """Mark a block as free, and insert it into its free list."""
    blocks, block_list = heap.blocks, heap.blocks[block, LIST]
    blocks[block, STATE] = FREE
    blocks[block, BORN] = heap.pools[pool_of(heap, block), SEARCHES_SMALL + is_large(heap, block_list)]
    insert(heap, free_list(block_list), block)


@compiled
def unlist_free(heap: AllocatorState, block: int) -> None:
    remove(heap, free_list(heap.blocks[block, LIST]), block)


@compiled
def list_unmapped(heap: AllocatorState, block: int) -> None:
    heap.blocks[block, STATE] = UNMAPPED
    insert(heap, unmapped_list(heap.blocks[block, LIST]), block)


@compiled
def unlist_unmapped(heap: AllocatorState, block: int) -> None:
    remove(heap, unmapped_list(heap.blocks[block, LIST]), block)


@compiled
def piece_of(heap: AllocatorState, block: int, address: int, size: int) -> Any:
    """Return a new record for a part of a block's segment. It has no neighbours and is in no list yet."""
    blocks = heap.blocks
    piece = new_record(heap)
    blocks[piece, ADDRESS] = address
    blocks[piece, SIZE] = size
    for column in (LIST, RANK, PAGE, ORIGIN):
        blocks[piece, column] = blocks[block, column]
    if heap.settings[TIES] == BY_BLOCK:
        blocks[piece, RANK] = next_rank(heap)
    return piece


@compiled
def link_before(heap: AllocatorState, piece: int, block: int) -> None:
    blocks = heap.blocks
    before = blocks[block, PREVIOUS]
    blocks[piece, PREVIOUS] = before
    blocks[piece, NEXT] = block
    blocks[block, PREVIOUS] = piece
    if before:
        blocks[before, NEXT] = piece


@compiled
def link_after(heap: AllocatorState, piece: int, block: int) -> None:
    blocks = heap.blocks
    behind = blocks[block, NEXT]
    blocks[piece, NEXT] = behind
    blocks[piece, PREVIOUS] = block
    blocks[block, NEXT] = piece
    if behind:
        blocks[behind, PREVIOUS] = piece


@compiled
def merge_neighbours(heap: AllocatorState, block: int, state: int) -> Any:
    """Merge a block with its neighbours in ``state`` (FREE or UNMAPPED), and remove these from their list.

    ``block`` itself is in no list. Return the number of merged neighbours, and their bytes.
    """
    blocks = heap.blocks
    count, size = 0, 0
    for side in (PREVIOUS, NEXT):
        other = blocks[block, side]
        if not other or blocks[other, STATE] != state:
            continue
        if state == FREE:
            unlist_free(heap, other)
        else:
            unlist_unmapped(heap, other)
        if side == PREVIOUS:
            blocks[block, ADDRESS] = blocks[other, ADDRESS]
        beyond = blocks[other, side]
        blocks[block, side] = beyond
        if beyond:
            blocks[beyond, PREVIOUS + NEXT - side] = block
        blocks[block, SIZE] += blocks[other, SIZE]
        count += 1
        size += blocks[other, SIZE]
        give_back(heap, other)
    return count, size


@compiled
def set_free(heap: AllocatorState, block: int) -> None:
    """Merge an unused block with its free neighbours, and insert the result into its free list."""
    blocks, counts = heap.blocks, heap.counts
    count, size = merge_neighbours(heap, block, FREE)
    list_free(heap, block)
    if blocks[block, PAGE] == 0:
        counts[INACTIVE_SPLIT] -= count
        counts[INACTIVE_SPLIT_BYTES] -= size
        if is_split(heap, block):
            counts[INACTIVE_SPLIT] += 1
            counts[INACTIVE_SPLIT_BYTES] += blocks[block, SIZE]


@compiled
def take(heap: AllocatorState, block: int, size: int, split: bool) -> Any:
    """Return the block to allocate, from a block in no list: its first ``size`` bytes if ``split``, else all of it."""
    blocks, counts = heap.blocks, heap.counts
    was_split = is_split(heap, block)
    if not split:
        if was_split and blocks[block, PAGE] == 0:
            counts[INACTIVE_SPLIT] -= 1
            counts[INACTIVE_SPLIT_BYTES] -= blocks[block, SIZE]
        return block
    taken = piece_of(heap, block, blocks[block, ADDRESS], size)
    link_before(heap, taken, block)
    blocks[block, ADDRESS] += size
    blocks[block, SIZE] -= size
    list_free(heap, block)
    if blocks[block, PAGE] == 0:
        if was_split:
            counts[INACTIVE_SPLIT_BYTES] -= size
        else:
            counts[INACTIVE_SPLIT] += 1
            counts[INACTIVE_SPLIT_BYTES] += blocks[block, SIZE]
    return taken
