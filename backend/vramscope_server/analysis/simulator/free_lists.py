"""Sorted sets of free blocks: treaps whose nodes are the blocks' own records.

Each list of a (pool, small or large, stream) is a binary tree by (size, rank, address), and a heap by a hash of the
record's number, which keeps it balanced: a search, an insertion and a removal take some 2 log2(n) steps, whether ten
blocks are free or a hundred thousand. Unmapped ranges are sorted by address alone.
Source: C. Aragon and R. Seidel, Randomized search trees (1989).
"""

from __future__ import annotations

from typing import Any

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.heap import (
    ADDRESS,
    FREE_BLOCKS,
    LEFT,
    RANK,
    RIGHT,
    SIZE,
    STATE,
    UNMAPPED,
    AllocatorState,
    compiled,
)


@compiled
def priority(record: int) -> Any:
    """Return a hash that is different for each record."""
    mixed = record * -7046029254386353131
    mixed ^= mixed >> 29
    return mixed * -4658895280553007687


@compiled
def precedes(blocks: IntArray, one: int, other: int) -> Any:
    """Return True if ``one`` precedes ``other`` in their list."""
    if blocks[one, STATE] != UNMAPPED:
        if blocks[one, SIZE] != blocks[other, SIZE]:
            return blocks[one, SIZE] < blocks[other, SIZE]
        if blocks[one, RANK] != blocks[other, RANK]:
            return blocks[one, RANK] < blocks[other, RANK]
    return blocks[one, ADDRESS] < blocks[other, ADDRESS]


@compiled
def insert(heap: AllocatorState, head: int, block: int) -> None:
    blocks = heap.blocks
    heap.counts[FREE_BLOCKS] += 1
    own = priority(block)
    parent, side = head, LEFT
    node = blocks[parent, side]
    while node and priority(node) > own:
        parent, side = node, (LEFT if precedes(blocks, block, node) else RIGHT)
        node = blocks[parent, side]
    blocks[parent, side] = block
    # The subtree is split at the new key: smaller blocks to the left, larger ones to the right.
    left_parent, left_side = block, LEFT
    right_parent, right_side = block, RIGHT
    while node:
        if precedes(blocks, node, block):
            blocks[left_parent, left_side] = node
            left_parent, left_side = node, RIGHT
            node = blocks[node, RIGHT]
        else:
            blocks[right_parent, right_side] = node
            right_parent, right_side = node, LEFT
            node = blocks[node, LEFT]
    blocks[left_parent, left_side] = 0
    blocks[right_parent, right_side] = 0


@compiled
def remove(heap: AllocatorState, head: int, block: int) -> None:
    """Remove a block from its list. Call this before its size or address changes."""
    blocks = heap.blocks
    heap.counts[FREE_BLOCKS] -= 1
    parent, side = head, LEFT
    node = blocks[parent, side]
    while node != block:
        parent, side = node, (LEFT if precedes(blocks, block, node) else RIGHT)
        node = blocks[parent, side]
    left, right = blocks[block, LEFT], blocks[block, RIGHT]
    while left and right:
        if priority(left) > priority(right):
            blocks[parent, side] = left
            parent, side = left, RIGHT
            left = blocks[left, RIGHT]
        else:
            blocks[parent, side] = right
            parent, side = right, LEFT
            right = blocks[right, LEFT]
    blocks[parent, side] = left if left else right
    blocks[block, LEFT] = 0
    blocks[block, RIGHT] = 0


@compiled
def first(heap: AllocatorState, head: int) -> Any:
    """Return the first block of a list; 0 if it is empty."""
    node = heap.blocks[head, LEFT]
    while node and heap.blocks[node, LEFT]:
        node = heap.blocks[node, LEFT]
    return node


@compiled
def first_of_size(heap: AllocatorState, head: int, size: int) -> Any:
    """Return the first free block of at least ``size`` bytes; 0 if there is none."""
    blocks = heap.blocks
    found = 0
    node = blocks[head, LEFT]
    while node:
        if blocks[node, SIZE] >= size:
            found = node
            node = blocks[node, LEFT]
        else:
            node = blocks[node, RIGHT]
    return found


@compiled
def last_below_size(heap: AllocatorState, head: int, size: int) -> Any:
    """Return the last free block of less than ``size`` bytes; 0 if there is none."""
    blocks = heap.blocks
    found = 0
    node = blocks[head, LEFT]
    while node:
        if blocks[node, SIZE] < size:
            found = node
            node = blocks[node, RIGHT]
        else:
            node = blocks[node, LEFT]
    return found


@compiled
def following(heap: AllocatorState, head: int, block: int) -> Any:
    """Return the next block of the list; 0 after the last. ``block`` itself may have been removed."""
    blocks = heap.blocks
    found = 0
    node = blocks[head, LEFT]
    while node:
        if precedes(blocks, block, node):
            found = node
            node = blocks[node, LEFT]
        else:
            node = blocks[node, RIGHT]
    return found


@compiled
def preceding(heap: AllocatorState, head: int, block: int) -> Any:
    """Return the previous block of the list; 0 before the first."""
    blocks = heap.blocks
    found = 0
    node = blocks[head, LEFT]
    while node:
        if precedes(blocks, node, block):
            found = node
            node = blocks[node, RIGHT]
        else:
            node = blocks[node, LEFT]
    return found
