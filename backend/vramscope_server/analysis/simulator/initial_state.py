"""Segments and blocks that exist when a program begins. A replay from the middle of a history starts from them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import inner
from vramscope_server.analysis.simulator.allocation import join_pending
from vramscope_server.analysis.simulator.blocks import list_free, list_unmapped
from vramscope_server.analysis.simulator.heap import (
    ACTIVE,
    ACTIVE_BYTES,
    ADDRESS,
    ALLOCATED,
    ALLOCATED_BYTES,
    ALLOCATION,
    DEVICE_ALLOCATIONS,
    DEVICE_USED,
    FREE,
    FRESH,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    ITEM,
    LARGE_SEGMENT,
    LIST,
    MAX_SPLIT,
    NEXT,
    ORIGIN,
    OVERSIZE_ALLOCATIONS,
    OVERSIZE_SEGMENTS,
    PAGE,
    PEAK_ACTIVE,
    PEAK_ALLOCATED,
    PEAK_REQUESTED,
    PEAK_RESERVED,
    POOLS,
    PREVIOUS,
    RANK,
    REQUESTED,
    REQUESTED_BYTES,
    RESERVATION_BYTES,
    RESERVED_BYTES,
    SEGMENT,
    SIZE,
    STATE,
    STREAMS,
    TIES,
    AllocatorState,
    compiled,
    new_record,
    pending_ring,
)
from vramscope_server.analysis.simulator.segments import GRANULE

INACTIVE: Final = 0
ACTIVE_ALLOCATED: Final = 1
ACTIVE_PENDING_FREE: Final = 2
"""States of a block, numbered as in ``vramscope.protocol.window.STATES``."""


class InitialState(NamedTuple):
    """Segments and their blocks, both sorted by address."""

    segment_address: IntArray
    segment_size_bytes: IntArray
    segment_stream: IntArray
    """Stream number, as in Program."""
    segment_pool: IntArray
    """Pool number, as in Program."""
    segment_large: IntArray
    segment_expandable: IntArray
    """1: a mapped range of an expandable segment; 0: a segment of cudaMalloc."""
    segment_age: IntArray
    """Rank by creation time; the lowest is the oldest. No snapshot has it, so it is guessed from the addresses."""
    block_segment: IntArray
    """Position of the block's segment. Every segment has a block."""
    block_address: IntArray
    block_size_bytes: IntArray
    block_requested_bytes: IntArray
    block_state: IntArray
    block_item: IntArray
    """Allocation of the program that uses the block; -1 for an inactive block."""


@inner
def fill_heap(heap: AllocatorState, initial: InitialState) -> None:
    """Add segments and blocks to an empty heap. It needs one record for each block and two for each segment.

    Snapshots do not contain the bounds of expandable segments. Mapped ranges of one pool and stream are assumed to be in the
    same segment if one reservation can contain them. The segment is assumed to start at the first of them.
    """
    blocks, counts, settings = heap.blocks, heap.counts, heap.settings
    segments = initial.segment_address.shape[0]
    youngest = initial.segment_age.max() if segments else 0  # ranks of later segments and blocks begin at 1
    first_block, last_record = 0, [0] * (2 * settings[POOLS] * settings[STREAMS])
    for segment in range(segments):
        pool, size = initial.segment_pool[segment], initial.segment_size_bytes[segment]
        block_list = (2 * pool + initial.segment_large[segment]) * settings[STREAMS] + initial.segment_stream[segment]
        counts[RESERVED_BYTES] += size
        counts[DEVICE_USED] += (size + GRANULE - 1) // GRANULE * GRANULE
        if pool:
            heap.pools[pool, DEVICE_ALLOCATIONS] += 1
        end_block = first_block
        before, page, origin = 0, 0, 0
        if initial.segment_expandable[segment]:
            before = last_record[block_list]
            page = settings[LARGE_SEGMENT] if initial.segment_large[segment] else GRANULE
            before, origin = in_reservation(heap, before, initial.segment_address[segment], size, page)
        else:
            counts[SEGMENT] += 1
            if size >= settings[MAX_SPLIT]:
                counts[OVERSIZE_SEGMENTS] += 1
        while end_block < initial.block_segment.shape[0] and initial.block_segment[end_block] == segment:
            record = new_record(heap)
            blocks[record, LIST] = block_list
            blocks[record, PAGE] = page
            blocks[record, ORIGIN] = origin
            blocks[record, RANK] = initial.segment_age[segment] - youngest - 1 if settings[TIES] else 0
            fill_block(heap, initial, end_block, record)
            join(heap, before, record)
            before = record
            end_block += 1
        if initial.segment_expandable[segment]:
            last_record[block_list] = before
        elif end_block - first_block > 1:
            for position in range(first_block, end_block):
                if initial.block_state[position] == INACTIVE:
                    counts[INACTIVE_SPLIT] += 1
                    counts[INACTIVE_SPLIT_BYTES] += initial.block_size_bytes[position]
        first_block = end_block
    for record in last_record:
        close_reservation(heap, record)
    for record in range(pending_ring(heap) + 1, counts[FRESH]):
        if blocks[record, STATE] == FREE:
            list_free(heap, record)
    counts[PEAK_RESERVED] = counts[RESERVED_BYTES]
    counts[PEAK_ALLOCATED] = counts[ALLOCATED_BYTES]
    counts[PEAK_ACTIVE] = counts[ACTIVE_BYTES]
    counts[PEAK_REQUESTED] = counts[REQUESTED_BYTES]


@compiled
def fill_block(heap: AllocatorState, initial: InitialState, position: int, record: int) -> None:
    blocks, counts = heap.blocks, heap.counts
    size, item = initial.block_size_bytes[position], initial.block_item[position]
    blocks[record, ADDRESS] = initial.block_address[position]
    blocks[record, SIZE] = size
    if initial.block_state[position] == INACTIVE:
        return
    blocks[record, STATE] = ALLOCATED
    blocks[record, REQUESTED] = initial.block_requested_bytes[position]
    blocks[record, ITEM] = item
    heap.block_of[item] = record
    counts[ACTIVE] += 1
    counts[ACTIVE_BYTES] += size
    counts[REQUESTED_BYTES] += initial.block_requested_bytes[position]
    if initial.block_state[position] == ACTIVE_ALLOCATED:
        counts[ALLOCATION] += 1
        counts[ALLOCATED_BYTES] += size
        if size >= heap.settings[MAX_SPLIT]:
            counts[OVERSIZE_ALLOCATIONS] += 1
    else:
        join_pending(heap, record)


@compiled
def join(heap: AllocatorState, before: int, record: int) -> None:
    heap.blocks[record, PREVIOUS] = before
    if before:
        heap.blocks[before, NEXT] = record


@compiled
def in_reservation(heap: AllocatorState, last: int, address: int, size: int, page: int) -> Any:
    """Return the record before a mapped range (0 if there is none), and the start address of its reservation.

    ``last`` is the last record of the range before; 0 if there is none. If the range does not fit into the same reservation,
    that one is closed.
    """
    blocks = heap.blocks
    if last:
        origin = blocks[last, ORIGIN]
        if address + size - origin <= reservation_length(heap, page) and (address - origin) % page == 0:
            end = blocks[last, ADDRESS] + blocks[last, SIZE]
            return (add_unmapped(heap, last, address - end) if address > end else last), origin
        close_reservation(heap, last)
    return 0, address


@compiled
def close_reservation(heap: AllocatorState, last: int) -> None:
    """Add the unmapped addresses after the last mapped range of a reservation."""
    if last:
        row = heap.blocks[last]
        rest = row[ORIGIN] + reservation_length(heap, row[PAGE]) - row[ADDRESS] - row[SIZE]
        if rest > 0:
            add_unmapped(heap, last, rest)


@compiled
def add_unmapped(heap: AllocatorState, last: int, size: int) -> Any:
    """Add unmapped addresses after a block, as a block in the list of unmapped blocks. Return its record."""
    blocks = heap.blocks
    record = new_record(heap)
    for column in (LIST, RANK, PAGE, ORIGIN):
        blocks[record, column] = blocks[last, column]
    blocks[record, ADDRESS] = blocks[last, ADDRESS] + blocks[last, SIZE]
    blocks[record, SIZE] = size
    join(heap, last, record)
    list_unmapped(heap, record)
    return record


@compiled
def reservation_length(heap: AllocatorState, page: int) -> Any:
    return (heap.settings[RESERVATION_BYTES] + page - 1) // page * page
