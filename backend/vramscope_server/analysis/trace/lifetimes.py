"""Lifetimes: which event began each allocation and each segment, and which event ended it.

Addresses are used again and again, so an event belongs to whatever lies open at its address at that moment. What begins
before the first event has the event -1; what does not end has the number of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import STATES
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
from vramscope_server.analysis.trace.types import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Bytes,
    Events,
    Flags,
    Layout,
)

SMALL_SEGMENT_BYTES: Final = 2 << 20
"""Segments of this size serve requests of up to 1 MiB; others are larger."""
MIB: Final = 1 << 20
_INACTIVE: Final = STATES.index("inactive")
_PENDING: Final = STATES.index("active_pending_free")
_FREED: Final = -2
"""in place of an open row: something began and ended there within the history"""


@dataclass(frozen=True, slots=True, eq=False)
class AllocationLifetimes:
    """One row an allocation; those that were there at the beginning first, by address, then in the order of their events."""

    alloc_event: Bytes
    requested_event: Bytes
    """when the program let go of it"""
    completed_event: Bytes
    """when its block could be used again: later where other streams used it"""
    address: Bytes
    requested_bytes: Bytes
    size_bytes: Bytes
    """of the block, rounded; a large block may have been handed out whole"""
    stream: Bytes
    pool: Bytes
    stack: Bytes
    unended: int
    """that neither ended nor are there at the end: events are missing"""

    def __len__(self) -> int:
        return len(self.alloc_event)

    def held_at(self, event: int) -> Bytes:
        """Positions of those whose blocks are in use after an event."""
        return np.flatnonzero((self.alloc_event <= event) & (self.completed_event > event))


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLifetimes:
    """One row a cudaMalloc'd segment, or a piece of an expandable one that is always mapped and unmapped as a whole."""

    born_event: Bytes
    died_event: Bytes
    address: Bytes
    size_bytes: Bytes
    stream: Bytes
    large: Bytes
    expandable: Bytes
    pool: Bytes

    def at(self, event: int) -> dict[str, Bytes]:
        """The segments after an event by rising address, columns as in window.SEGMENTS; neighbouring mapped pieces as one."""
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
    """The lives of all segments. Without a recorded start, what was there is rolled back from the end."""
    changes = np.flatnonzero((events.action >= SEGMENT_ALLOC) & (events.action <= SEGMENT_UNMAP))
    action = events.action[changes]
    there = start if start is not None else end
    rows = [_of_layout(there, -1 if start is not None else len(events)), _of_changes(events, changes, action)]
    when, gain, low, high, stream, large, expandable, pool = (
        np.concatenate([one[at] for one in rows]) for at in range(8)
    )
    unmapped = np.concatenate([np.zeros(len(rows[0][0]), bool), action == SEGMENT_UNMAP])
    _large_as_mapped(low, stream, large, np.flatnonzero(unmapped), np.flatnonzero((expandable == 1) & ~unmapped))
    # Cut at every border that there ever was, so that each piece is mapped and unmapped as a whole.
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


def _large_as_mapped(low: Bytes, stream: Bytes, large: Bytes, unmapped: Bytes, told: Bytes) -> None:
    """Sets ``large`` of what was unmapped. Its size does not tell: many small pages go at once.

    One segment is for one kind, so it is that of what lies nearest, of the same stream, and whose kind a layout tells or the
    size in which it was mapped.
    """
    for one in np.unique(stream[unmapped]):
        which, known = unmapped[stream[unmapped] == one], told[stream[told] == one]
        if not len(known):
            continue
        known = known[np.argsort(low[known], kind="stable")]
        above = np.searchsorted(low[known], low[which])
        below, above = np.maximum(above - 1, 0), np.minimum(above, len(known) - 1)
        nearer = np.abs(low[known][above] - low[which]) < np.abs(low[which] - low[known][below])
        large[which] = large[known[np.where(nearer, above, below)]]


def _of_layout(layout: Layout, when: int) -> tuple[Bytes, ...]:
    rows = layout.segments
    count = len(rows)
    columns = (rows.address, rows.address + rows.size_bytes, rows.stream, rows.large, rows.expandable, rows.pool)
    stamp, gain = np.full(count, when), np.full(count, 1 if when < 0 else 0)
    return (stamp, gain, *(column.astype(np.int64) for column in columns))


def _of_changes(events: Events, changes: Bytes, action: npt.NDArray[np.uint8]) -> tuple[Bytes, ...]:
    low, size = events.address[changes], events.size_bytes[changes]
    gain = np.isin(action, (SEGMENT_ALLOC, SEGMENT_MAP)).astype(np.int64)
    expandable = np.isin(action, (SEGMENT_MAP, SEGMENT_UNMAP)).astype(np.int64)
    large = (size > SMALL_SEGMENT_BYTES).astype(np.int64)
    pool = events.pool[changes].astype(np.int64)
    return (changes, gain, low, low + size, events.stream[changes], large, expandable, pool)


def _paired(
    when: Bytes, gain: Bytes, address: Bytes, size: Bytes, stream: Bytes, large: Bytes, expandable: Bytes, pool: Bytes,
    *, end: int,
) -> SegmentLifetimes:  # fmt: skip
    """Rows of gains and losses, matched by address in the order of time. A row at ``end`` says that it is there then."""
    order = np.lexsort((when, size, address))
    address, size, when, gain = address[order], size[order], when[order], gain[order]
    same = np.zeros(len(order), bool)
    same[1:] = (address[1:] == address[:-1]) & (size[1:] == size[:-1])
    follows = np.append(same[1:], False)
    born = gain == 1
    died = np.full(len(order), end)
    died[:-1] = np.where(follows[:-1], when[1:], end)
    # A loss, or a presence at the end, that no gain stands before: it was there at the beginning.
    alone = ~born & ~(same & np.append(False, born[:-1]))
    keep = born | alone
    begun = np.where(born, when, -1)[keep]
    ended = np.where(born, died, when)[keep]
    wide = [column[order][keep] for column in (stream, large, expandable, pool)]
    # What a layout says of a piece holds for all its lives, where an event does not tell.
    return SegmentLifetimes(begun, ended, address[keep], size[keep], wide[0], wide[1], wide[2], np.maximum(wide[3], 0))


# ---- allocations ----


@entry
def _matched(
    action: Any, place: Any, open_at: Any, alloc: Any, requested: Any, completed: Any, first: Any, known: int
) -> int:
    """Fills the intervals of all lives from row ``known`` on; ``first`` keeps the event that tells of each. Returns the rows."""
    rows = known
    for event in range(len(action)):
        kind = action[event]
        if kind > FREE_COMPLETED:
            continue
        row = open_at[place[event]]
        if kind == ALLOC:
            if row >= 0:  # its free is missing: it had ended by now
                requested[row] = min(requested[row], event)
                completed[row] = event
            alloc[rows] = event
            first[rows] = event
            open_at[place[event]] = rows
            rows += 1
            continue
        if row == _FREED:  # it is free already: nothing is known of what this was to end
            continue
        if row < 0:  # from before the beginning
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
    """The lives of all allocations, and the sizes of their blocks."""
    count = len(events)
    told = start.blocks if start is not None else None
    active = np.flatnonzero(told.state != _INACTIVE) if told is not None else np.empty(0, np.int64)
    known = len(active)
    start_address = told.address[active] if told is not None else np.empty(0, np.int64)
    places, place = np.unique(np.concatenate([start_address, events.address]), return_inverse=True)
    place = place.reshape(-1)
    room = known + int(np.count_nonzero(events.action <= FREE_COMPLETED))
    alloc, requested, completed = np.full(room, -1), np.full(room, count), np.full(room, count)
    first = np.full(room, -1)
    open_at = np.full(len(places), -1)
    open_at[place[:known]] = np.arange(known)
    if told is not None:
        requested[:known][told.state[active] == _PENDING] = -1
    rows = int(_matched(events.action, place[known:], open_at, alloc, requested, completed, first, known))
    alloc, requested, completed, first = alloc[:rows], requested[:rows], completed[:rows], first[:rows]
    told_by = first[known:]
    columns = {
        "address": [start_address, events.address[told_by]],
        "requested_bytes": [np.empty(0, np.int64), events.size_bytes[told_by]],
        "stream": [np.empty(0, np.int64), events.stream[told_by]],
        "pool": [np.empty(0, np.int64), events.pool[told_by].astype(np.int64)],
        "stack": [np.empty(0, np.int64), events.stack[told_by].astype(np.int64)],
    }
    size = np.full(rows, -1)
    if start is not None and told is not None:
        home = told.segment[active]
        columns["requested_bytes"][0] = told.requested_bytes[active]
        columns["stream"][0] = start.segments.stream[home]
        columns["pool"][0] = start.segments.pool[home].astype(np.int64)
        columns["stack"][0] = told.stack[active].astype(np.int64)
        size[:known] = told.size_bytes[active]
    made = {name: np.concatenate(parts) for name, parts in columns.items()}

    # What the end knows: exact sizes of what is still there; and, of a history that begins somewhere, what never changed.
    last = end.blocks
    held = np.flatnonzero(last.state != _INACTIVE)
    at = np.searchsorted(places, last.address[held])
    found = (at < len(places)) & (np.append(places, -1)[at] == last.address[held])
    row = np.where(found, np.append(open_at, -1)[np.where(found, at, len(places))], -1)
    size[row[row >= 0]] = last.size_bytes[held][row >= 0]
    if not (events.action == FREE_COMPLETED).any():  # not recorded (skip_actions): the program let go, and that was all
        gone = requested < count
        gone[row[row >= 0]] = False
        completed[gone] = np.maximum(requested[gone], 0)
    unended = int(np.count_nonzero(completed == count)) - len(np.unique(row[row >= 0]))
    extra = held[row < 0] if start is None else held[:0]
    home = last.segment[extra]
    begun = np.concatenate([alloc, np.full(len(extra), -1)])
    made = {
        "address": np.concatenate([made["address"], last.address[extra]]),
        "requested_bytes": np.concatenate([made["requested_bytes"], last.requested_bytes[extra]]),
        "stream": np.concatenate([made["stream"], end.segments.stream[home]]),
        "pool": np.concatenate([made["pool"], end.segments.pool[home].astype(np.int64)]),
        "stack": np.concatenate([made["stack"], last.stack[extra].astype(np.int64)]),
        "requested_event": np.concatenate([requested, np.where(last.state[extra] == _PENDING, -1, count)]),
        "completed_event": np.concatenate([completed, np.full(len(extra), count)]),
        "size_bytes": np.concatenate([size, last.size_bytes[extra]]),
    }
    order = np.lexsort((made["address"], begun))
    made = {name: column[order] for name, column in made.items()}
    made["pool"] = np.maximum(made["pool"], 0)
    lives = AllocationLifetimes(alloc_event=begun[order], unended=unended, **made)
    guessed = (lives.alloc_event < 0) & (lives.size_bytes < 0)
    _fill_earlier_sizes(lives, segments, rules)
    _fill_sizes(lives, segments, rules, count, guessed)
    return lives


def _fill_earlier_sizes(lives: AllocationLifetimes, segments: SegmentLifetimes, rules: Rounding) -> None:
    """Of blocks from before the history: their requests, rounded, and what lies behind them if it is too little to be free.

    The allocator cuts off no piece of 1 MiB or less of a large block, so that such a gap is the end of the block before it.
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
        made[:] = False  # no piece is handed out whole then: all sizes are those of the requests
    kinds = [
        (SEGMENT, np.flatnonzero(made), segments.born_event, segments.address),
        (TAKE, np.arange(len(lives)), lives.alloc_event, lives.address),
        (NO_SEGMENT, np.flatnonzero(made & (segments.died_event < end)), segments.died_event, segments.address),
        (GIVE_BACK, np.flatnonzero(lives.completed_event < end), lives.completed_event, lives.address),
    ]  # fmt: skip
    kind = np.concatenate([np.full(len(rows), one) for one, rows, _, _ in kinds])
    row = np.concatenate([rows for _, rows, _, _ in kinds])
    when = np.concatenate([event[rows] for _, rows, event, _ in kinds])
    # What was there at the beginning comes by address, each segment before its blocks; all else in the order of events.
    address = np.concatenate([np.where(event[rows] < 0, at[rows], 0) for _, rows, event, at in kinds])
    order = np.lexsort((kind == TAKE, address, when))
    already = int(np.count_nonzero(when < 0))
    followed(
        kind[order], row[order], np.unique(np.concatenate([lives.address, segments.address])), lives.address,
        lives.requested_bytes, lives.size_bytes, segments.address, segments.size_bytes, rules.later(lives.alloc_event),
        rules.divisions, rules.max_split_bytes, rules.expandable, already, guessed,
    )  # fmt: skip
