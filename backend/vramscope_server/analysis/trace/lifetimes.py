"""Lifetimes: which event began each allocation and each segment, and which event ended it.

Addresses are reused, so an event belongs to the allocation that is open at its address. An allocation from before the first
event has the event -1. An allocation that does not end has the number of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import STATES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.simulator.rounding import rounded
from vramscope_server.analysis.trace.block_sizes import (
    GIVE_BACK,
    NO_SEGMENT,
    SEGMENT,
    SMALL_BYTES,
    TAKE,
    Rounding,
    followed,
)
from vramscope_server.analysis.trace.counting_sort import distinct
from vramscope_server.analysis.trace.types import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Events,
    Flags,
    Layout,
)

SMALL_SEGMENT_BYTES: Final = 2 << 20
"""Size of segments for requests of up to 1 MiB. Others are larger."""
MIB: Final = 1 << 20
_INACTIVE: Final = STATES.index("inactive")
_PENDING: Final = STATES.index("active_pending_free")
_FREED: Final = -2
"""Marks an address whose allocation began and ended within the recording."""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationLifetimes:
    """One row per allocation: first those from before the recording, by address, then others in the order of events."""

    alloc_event: IntArray
    free_requested_event: IntArray
    """Event at which the program freed it."""
    completed_event: IntArray
    """Event from which its block is free. It is later if other streams used it."""
    address: IntArray
    requested_bytes: IntArray
    size_bytes: IntArray
    """Size of the block, rounding included. A large block may include an unsplit remainder."""
    stream: IntArray
    pool: IntArray
    stack: IntArray
    unended: int
    """Number of allocations that neither ended nor exist at the end: events are missing."""

    def __len__(self) -> int:
        return len(self.alloc_event)

    def active_at(self, event: int) -> IntArray:
        """Positions of the allocations whose blocks are active after an event."""
        return np.flatnonzero((self.alloc_event <= event) & (self.completed_event > event))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLifetimes:
    """One row per cudaMalloc segment, or per range of an expandable segment that is mapped and unmapped as a whole."""

    born_event: IntArray
    died_event: IntArray
    address: IntArray
    size_bytes: IntArray
    stream: IntArray
    large: IntArray
    expandable: IntArray
    pool: IntArray

    def at(self, event: int) -> dict[str, IntArray]:
        """Segments after an event, sorted by address, with the columns of window.SEGMENTS. Adjacent mapped ranges are merged."""
        there = np.flatnonzero((self.born_event <= event) & (self.died_event > event))
        there = there[np.argsort(self.address[there], kind="stable")]
        names = ("address", "size_bytes", "stream", "large", "expandable", "pool")
        rows = {name: getattr(self, name)[there] for name in names}
        if not len(there):
            return rows
        same = (rows["expandable"][1:] == 1) & (rows["address"][1:] == (rows["address"] + rows["size_bytes"])[:-1])
        for name in ("stream", "large", "expandable", "pool"):
            same &= rows[name][1:] == rows[name][:-1]
        first = np.flatnonzero(np.concatenate([[True], ~same]))
        return {
            name: np.add.reduceat(rows[name], first) if name == "size_bytes" else rows[name][first] for name in names
        }


# ---- segments ----


def segment_lifetimes_of(events: Events, start: Layout | None, end: Layout) -> SegmentLifetimes:
    """Lifetimes of all segments. Without a recorded start they are rolled back from the end."""
    changes = np.flatnonzero((events.action >= SEGMENT_ALLOC) & (events.action <= SEGMENT_UNMAP))
    action = events.action[changes]
    there = start if start is not None else end
    rows = [_of_layout(there, -1 if start is not None else len(events)), _of_changes(events, changes, action)]
    when, gain, low, high, stream, large, expandable, pool = (
        np.concatenate([one[at] for one in rows]) for at in range(8)
    )
    unmapped = np.concatenate([np.zeros(len(rows[0][0]), bool), action == SEGMENT_UNMAP])
    _large_as_mapped(low, stream, large, np.flatnonzero(unmapped), np.flatnonzero((expandable == 1) & ~unmapped))
    # Cut at all borders, so that each range is mapped and unmapped as a whole.
    borders = np.unique(np.concatenate([low[expandable == 1], high[expandable == 1]]))
    inside = np.searchsorted(borders, high) - np.searchsorted(borders, low)
    copies = np.where(expandable == 1, inside, 1)
    row = np.repeat(np.arange(len(when)), copies)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(copies) - copies, copies)
    cut = expandable[row] == 1
    at = np.where(cut, np.searchsorted(borders, low[row]) + nth, 0)
    ends = np.append(borders, 0) if not len(borders) else borders
    piece_low = np.where(cut, ends[np.minimum(at, len(ends) - 1)], low[row])
    piece_high = np.where(cut, ends[np.minimum(at + 1, len(ends) - 1)], high[row])
    return _paired(
        when[row], gain[row], piece_low, piece_high - piece_low, stream[row], large[row], expandable[row], pool[row],
        end=len(events),
    )  # fmt: skip


def _large_as_mapped(low: IntArray, stream: IntArray, large: IntArray, unmapped: IntArray, recorded: IntArray) -> None:
    """Set ``large`` of unmapped ranges. Their size does not show it, because many small pages are unmapped at once.

    A segment has one kind, so the nearest range of the same stream with a known kind decides.
    """
    for one in np.unique(stream[unmapped]):
        which, known = unmapped[stream[unmapped] == one], recorded[stream[recorded] == one]
        if not len(known):
            continue
        known = known[np.argsort(low[known], kind="stable")]
        above = np.searchsorted(low[known], low[which])
        below, above = np.maximum(above - 1, 0), np.minimum(above, len(known) - 1)
        nearer = np.abs(low[known][above] - low[which]) < np.abs(low[which] - low[known][below])
        large[which] = large[known[np.where(nearer, above, below)]]


def _of_layout(layout: Layout, when: int) -> tuple[IntArray, ...]:
    rows = layout.segments
    count = len(rows)
    columns = (rows.address, rows.address + rows.size_bytes, rows.stream, rows.large, rows.expandable, rows.pool)
    stamp, gain = np.full(count, when), np.full(count, 1 if when < 0 else 0)
    return (stamp, gain, *(column.astype(np.int64) for column in columns))


def _of_changes(events: Events, changes: IntArray, action: npt.NDArray[np.uint8]) -> tuple[IntArray, ...]:
    low, size = events.address[changes], events.size_bytes[changes]
    gain = np.isin(action, (SEGMENT_ALLOC, SEGMENT_MAP)).astype(np.int64)
    expandable = np.isin(action, (SEGMENT_MAP, SEGMENT_UNMAP)).astype(np.int64)
    large = (size > SMALL_SEGMENT_BYTES).astype(np.int64)
    pool = events.pool[changes].astype(np.int64)
    return (changes, gain, low, low + size, events.stream[changes], large, expandable, pool)


def _paired(
    when: IntArray, gain: IntArray, address: IntArray, size: IntArray, stream: IntArray, large: IntArray,
    expandable: IntArray, pool: IntArray, *, end: int,
) -> SegmentLifetimes:  # fmt: skip
    """Match rows of gains and losses by address in the order of time. A row at ``end`` exists then."""
    order = np.lexsort((when, size, address))
    address, size, when, gain = address[order], size[order], when[order], gain[order]
    same = np.zeros(len(order), bool)
    same[1:] = (address[1:] == address[:-1]) & (size[1:] == size[:-1])
    follows = np.append(same[1:], False)
    born = gain == 1
    died = np.full(len(order), end)
    died[:-1] = np.where(follows[:-1], when[1:], end)
    # A loss, or an existence at the end, without a gain before it: the segment existed at the start.
    alone = ~born & ~(same & np.append(False, born[:-1]))
    keep = born | alone
    first = np.where(born, when, -1)[keep]
    ended = np.where(born, died, when)[keep]
    wide = [column[order][keep] for column in (stream, large, expandable, pool)]
    # If an event lacks the pool, that of the layout applies to all lifetimes of the range.
    return SegmentLifetimes(first, ended, address[keep], size[keep], wide[0], wide[1], wide[2], np.maximum(wide[3], 0))


# ---- allocations ----


@entry
def _matched(
    action: Any, place: Any, open_at: Any, alloc: Any, requested: Any, completed: Any, first: Any, known: int
) -> int:
    """Fill the lifetimes from row ``known`` on. ``first`` gets the event that describes each. Returns the number of rows."""
    rows = known
    for event in range(len(action)):
        kind = action[event]
        if kind > FREE_COMPLETED:
            continue
        row = open_at[place[event]]
        if kind == ALLOC:
            if row >= 0:  # its free event is missing: it has ended by now
                requested[row] = min(requested[row], event)
                completed[row] = event
            alloc[rows] = event
            first[rows] = event
            open_at[place[event]] = rows
            rows += 1
            continue
        if row == _FREED:  # it is free already: this event ends something unknown
            continue
        if row < 0:  # from before the recording
            row = rows
            rows += 1
            first[row] = event
            if kind == FREE_COMPLETED:
                requested[row] = -1
        if kind == FREE_REQUESTED:
            requested[row] = event
            open_at[place[event]] = row
        else:
            requested[row] = min(requested[row], event)
            completed[row] = event
            open_at[place[event]] = _FREED
    return rows


def lifetimes_of(
    events: Events, start: Layout | None, end: Layout, segments: SegmentLifetimes, rules: Rounding
) -> AllocationLifetimes:
    """Lifetimes of all allocations, and the sizes of their blocks."""
    count = len(events)
    first_blocks = start.blocks if start is not None else None
    active = np.flatnonzero(first_blocks.state != _INACTIVE) if first_blocks is not None else np.empty(0, np.int64)
    known = len(active)
    start_address = first_blocks.address[active] if first_blocks is not None else np.empty(0, np.int64)
    places, place = np.unique(np.concatenate([start_address, events.address]), return_inverse=True)
    place = place.reshape(-1)
    capacity = known + int(np.count_nonzero(events.action <= FREE_COMPLETED))
    alloc, requested, completed = np.full(capacity, -1), np.full(capacity, count), np.full(capacity, count)
    first = np.full(capacity, -1)
    open_at = np.full(len(places), -1)
    open_at[place[:known]] = np.arange(known)
    if first_blocks is not None:
        requested[:known][first_blocks.state[active] == _PENDING] = -1
    rows = int(_matched(events.action, place[known:], open_at, alloc, requested, completed, first, known))
    alloc, requested, completed, first = alloc[:rows], requested[:rows], completed[:rows], first[:rows]
    described_by = first[known:]
    columns = {
        "address": [start_address, events.address[described_by]],
        "requested_bytes": [np.empty(0, np.int64), events.size_bytes[described_by]],
        "stream": [np.empty(0, np.int64), events.stream[described_by]],
        "pool": [np.empty(0, np.int64), events.pool[described_by].astype(np.int64)],
        "stack": [np.empty(0, np.int64), events.stack[described_by].astype(np.int64)],
    }
    size = np.full(rows, -1)
    if start is not None and first_blocks is not None:
        home = first_blocks.segment[active]
        columns["requested_bytes"][0] = first_blocks.requested_bytes[active]
        columns["stream"][0] = start.segments.stream[home]
        columns["pool"][0] = start.segments.pool[home].astype(np.int64)
        columns["stack"][0] = first_blocks.stack[active].astype(np.int64)
        size[:known] = first_blocks.size_bytes[active]
    made = {name: np.concatenate(parts) for name, parts in columns.items()}

    # The end has exact sizes of the remaining blocks and, without a recorded start, the blocks that never changed.
    last = end.blocks
    at_end = np.flatnonzero(last.state != _INACTIVE)
    at = np.searchsorted(places, last.address[at_end])
    found = (at < len(places)) & (np.append(places, -1)[at] == last.address[at_end])
    row = np.where(found, np.append(open_at, -1)[np.where(found, at, len(places))], -1)
    size[row[row >= 0]] = last.size_bytes[at_end][row >= 0]
    if not (events.action == FREE_COMPLETED).any():  # not recorded (skip_actions): blocks were free at once
        gone = requested < count
        gone[row[row >= 0]] = False
        completed[gone] = np.maximum(requested[gone], 0)
    unended = int(np.count_nonzero(completed == count)) - len(distinct(row[row >= 0]))
    extra = at_end[row < 0] if start is None else at_end[:0]
    home = last.segment[extra]
    begin = np.concatenate([alloc, np.full(len(extra), -1)])
    made = {
        "address": np.concatenate([made["address"], last.address[extra]]),
        "requested_bytes": np.concatenate([made["requested_bytes"], last.requested_bytes[extra]]),
        "stream": np.concatenate([made["stream"], end.segments.stream[home]]),
        "pool": np.concatenate([made["pool"], end.segments.pool[home].astype(np.int64)]),
        "stack": np.concatenate([made["stack"], last.stack[extra].astype(np.int64)]),
        "free_requested_event": np.concatenate([requested, np.where(last.state[extra] == _PENDING, -1, count)]),
        "completed_event": np.concatenate([completed, np.full(len(extra), count)]),
        "size_bytes": np.concatenate([size, last.size_bytes[extra]]),
    }
    order = np.lexsort((made["address"], begin))
    made = {name: column[order] for name, column in made.items()}
    made["pool"] = np.maximum(made["pool"], 0)
    lives = AllocationLifetimes(alloc_event=begin[order], unended=unended, **made)
    guessed = (lives.alloc_event < 0) & (lives.size_bytes < 0)
    _fill_earlier_sizes(lives, segments, rules)
    _fill_sizes(lives, segments, rules, count, guessed)
    return lives


def _fill_earlier_sizes(lives: AllocationLifetimes, segments: SegmentLifetimes, rules: Rounding) -> None:
    """Fill the sizes of blocks from before the recording: the rounded request, plus a gap that is too small to be free.

    The allocator splits no remainder of 1 MiB or less off a large block, so such a gap belongs to the block before it.
    """
    there = np.flatnonzero(lives.alloc_event < 0)  # by address
    if not len(there) or lives.size_bytes[there].min() >= 0:
        return
    size = lives.size_bytes[there]
    for at in np.flatnonzero(size < 0):
        size[at] = rounded(lives.requested_bytes[there[at]], rules.divisions[int(not rules.until_event)])
    low = np.flatnonzero((segments.born_event < 0) & (segments.expandable == 0))
    low = low[np.argsort(segments.address[low])]
    if len(low) and not rules.expandable[int(not rules.until_event)]:
        home = low[np.maximum(np.searchsorted(segments.address[low], lives.address[there], side="right") - 1, 0)]
        bound = segments.address[home] + segments.size_bytes[home]
        bound[:-1] = np.minimum(bound[:-1], lives.address[there][1:])
        gap = bound - lives.address[there] - size
        ends = (lives.size_bytes[there] < 0) & (size > SMALL_BYTES) & (gap > 0) & (gap <= SMALL_BYTES)
        size[ends] += gap[ends]
    lives.size_bytes[there] = size


def _fill_sizes(
    lives: AllocationLifetimes, segments: SegmentLifetimes, rules: Rounding, end: int, guessed: Flags
) -> None:
    made = segments.expandable == 0
    if rules.expandable.all():
        made[:] = False  # all blocks are split then: all sizes are those of the requests
    kinds = [
        (SEGMENT, np.flatnonzero(made), segments.born_event, segments.address),
        (TAKE, np.arange(len(lives)), lives.alloc_event, lives.address),
        (NO_SEGMENT, np.flatnonzero(made & (segments.died_event < end)), segments.died_event, segments.address),
        (GIVE_BACK, np.flatnonzero(lives.completed_event < end), lives.completed_event, lives.address),
    ]  # fmt: skip
    kind = np.concatenate([np.full(len(rows), one) for one, rows, _, _ in kinds])
    row = np.concatenate([rows for _, rows, _, _ in kinds])
    when = np.concatenate([event[rows] for _, rows, event, _ in kinds])
    # Rows from before the recording are sorted by address, each segment before its blocks; others by event.
    address = np.concatenate([np.where(event[rows] < 0, at[rows], 0) for _, rows, event, at in kinds])
    order = np.lexsort((kind == TAKE, address, when))
    already = int(np.count_nonzero(when < 0))
    followed(
        kind[order], row[order], distinct(np.concatenate([lives.address, segments.address])), lives.address,
        lives.requested_bytes, lives.size_bytes, segments.address, segments.size_bytes, rules.later(lives.alloc_event),
        rules.divisions, rules.max_split_bytes, rules.expandable, already, guessed,
    )  # fmt: skip
