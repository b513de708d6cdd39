"""Sizes of blocks. Events have only the requested size and the address.

A large block of a cudaMalloc segment is not split if too little would remain, so its size depends on the free block that
served it. Free blocks are tracked through the events: the address of each allocation shows which one served it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry, inner
from vramscope_server.analysis.simulator.rounding import rounded

Flags = npt.NDArray[np.bool_]

TAKE, GIVE_BACK, SEGMENT, NO_SEGMENT = range(4)
"""Kinds of rows: an allocation, its end, a segment made and returned."""
SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Rounding:
    """Settings that decide on a block's size, each with a value before and after a change of settings."""

    until_event: int
    """Number of events before the change; 0 if the second values apply to all events."""
    divisions: IntArray
    """roundup_power2_divisions: 2 x 16 values, for requests up to 2 MiB, 2 to 4 MiB ... from 32 GiB on; 0 or 1 for none."""
    max_split_bytes: IntArray
    expandable: Flags
    """If set, all blocks are split, also in cudaMalloc segments."""

    def later(self, event: IntArray) -> IntArray:
        """Which of the two values applies to each event."""
        return (event >= self.until_event).astype(np.int64)

    def rounded(self, requested_bytes: IntArray, event: IntArray) -> IntArray:
        """Rounded sizes of requests at these events."""
        sizes: IntArray = rounded_sizes(requested_bytes, self.divisions, self.later(event))
        return sizes


@entry
def rounded_sizes(requested_bytes: Any, divisions: Any, later: Any) -> Any:
    """Sizes of requests as the allocator rounds them, each by one row of ``divisions``."""
    sizes = np.empty(len(requested_bytes), np.int64)
    for index in range(len(requested_bytes)):
        sizes[index] = rounded(requested_bytes[index], divisions[later[index]])
    return sizes


@inner
def _carve(
    start: Any, size: Any, before: Any, after: Any, used: Any, count: int, piece: int, address: int, bytes_: int
) -> int:
    """Allocate a block inside ``piece``. The remainders on both sides become free blocks. Returns their count."""
    if address > start[piece]:
        start[count], size[count] = start[piece], address - start[piece]
        before[count], after[count] = before[piece], piece
        if before[piece] >= 0:
            after[before[piece]] = count
        before[piece] = count
        size[piece] -= size[count]
        start[piece] = address
        count += 1
    if size[piece] > bytes_:
        start[count], size[count] = address + bytes_, size[piece] - bytes_
        before[count], after[count] = piece, after[piece]
        if after[piece] >= 0:
            before[after[piece]] = count
        after[piece] = count
        size[piece] = bytes_
        count += 1
    used[piece] = True
    return count


@inner
def _shortened(places: Any, at_place: Any, place: Any, start: Any, size: Any, before: Any, after: Any, used: Any, earlier: Any,
               size_bytes: Any, address: int) -> Any:  # fmt: skip
    """Free block that actually starts at ``address``; -1 if there is none.

    An allocation uses the low end of a free block. The part before it then belongs to the previous block, if that one is from
    before the recording and its size was estimated.
    """
    while place >= 0 and at_place[place] < 0:
        place -= 1
    if place < 0:
        return -1
    piece = at_place[place]
    if used[piece]:  # the estimated start of the free block after it was never used
        piece = after[piece]
    if piece < 0 or used[piece] or not start[piece] < address < start[piece] + size[piece]:
        return -1
    missing, owner = address - start[piece], before[piece]
    if owner < 0 or not used[owner] or earlier[owner] < 0 or missing > SMALL_BYTES:
        return -1
    size[owner] += missing
    size_bytes[earlier[owner]] += missing
    start[piece] += missing
    size[piece] -= missing
    if places[place] > start[owner]:
        at_place[place] = -1
    return piece


@entry
def followed(
    kind: Any, row: Any, places: Any, address: Any, requested: Any, size_bytes: Any,
    segment_address: Any, segment_size: Any, later: Any, divisions: Any, max_split_bytes: Any, expandable: Any, already: int,
    guessed: Any,
) -> None:  # fmt: skip
    """Fill ``size_bytes`` where it is -1. Rows are in the order of events; ``places`` are all addresses, sorted.

    The first ``already`` rows are from before the recording, sorted by address. Sizes that are ``guessed`` are corrected if
    events show that they were larger. A block whose free block is unknown gets the rounded size of its request. ``later``
    selects one of the two settings of a Rounding for each allocation.
    """
    room = 2 * len(kind) + 2
    start, size = np.zeros(room, np.int64), np.zeros(room, np.int64)
    before, after = np.full(room, -1), np.full(room, -1)
    used = np.zeros(room, np.bool_)
    earlier = np.full(room, -1)  # block from before the recording whose request only is known
    at_place = np.full(len(places), -1)
    count = 0
    tail = -1  # rest of the segment after its last block, while the start is laid out
    for event in range(len(kind)):
        one = row[event]
        if kind[event] == SEGMENT or kind[event] == NO_SEGMENT:
            place = np.searchsorted(places, segment_address[one])
            at_place[place] = -1
            if kind[event] == SEGMENT:
                start[count], size[count] = segment_address[one], segment_size[one]
                at_place[place] = tail = count
                count += 1
            continue
        place = np.searchsorted(places, address[one])
        piece = tail if event < already else at_place[place]
        if kind[event] == TAKE:
            need = size_bytes[one]
            if event < already and guessed[one] and piece >= 0:
                earlier[piece] = one
            if event >= already and piece < 0:
                piece = _shortened(
                    places, at_place, place, start, size, before, after, used, earlier, size_bytes, address[one]
                )
            if need < 0:
                need = rounded(requested[one], divisions[later[one]])
            if (
                piece < 0
                or used[piece]
                or start[piece] > address[one]
                or start[piece] + size[piece] < address[one] + need
            ):
                at_place[place] = -1
                size_bytes[one] = need
                continue
            if size_bytes[one] < 0:
                rest = size[piece] - need
                whole = need > SMALL_BYTES and not expandable[later[one]]
                if whole and not (need < max_split_bytes[later[one]] and rest > SMALL_BYTES):
                    need = size[piece]
                size_bytes[one] = need
            if event >= already:
                earlier[piece] = -1
            count = _carve(start, size, before, after, used, count, piece, address[one], need)
            for side in (before[piece], after[piece]):
                if side >= 0:
                    there = np.searchsorted(places, start[side])
                    if there < len(places) and places[there] == start[side]:
                        at_place[there] = side
            at_place[place] = piece
            tail = after[piece]
        elif piece >= 0 and used[piece] and start[piece] == address[one]:
            used[piece] = False
            low = before[piece]
            if low >= 0 and not used[low]:
                size[low] += size[piece]
                after[low] = after[piece]
                if after[piece] >= 0:
                    before[after[piece]] = low
                at_place[place] = -1
                piece = low
            high = after[piece]
            if high >= 0 and not used[high]:
                size[piece] += size[high]
                after[piece] = after[high]
                if after[high] >= 0:
                    before[after[high]] = piece
                there = np.searchsorted(places, start[high])
                if there < len(places) and places[there] == start[high]:
                    at_place[there] = -1
