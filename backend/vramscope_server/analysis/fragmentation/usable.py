"""Tracks the free blocks of a device through a recording, and their unusable bytes (see breakdown.py).

Compiled by numba, because there are millions of moves. The time per move does not depend on the number of free blocks.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.fragmentation.place_set import at_or_below, drop, empty_set, put
from vramscope_server.analysis.fragmentation.request_sizes import RequestSizes
from vramscope_server.analysis.numba_compile import entry, lean
from vramscope_server.analysis.trace.counting_sort import distinct

NO_LIMIT: Final = 1 << 62

GIVE: Final = 0
REMOVE_SEGMENT: Final = 1
UNMAP: Final = 2
ADD_SEGMENT: Final = 3
MAP: Final = 4
TAKE: Final = 5
"""Order of moves at one event: removals before additions, and additions before their use."""


class Spans(NamedTuple):
    """Memory ranges that are added and removed as a whole: blocks, cudaMalloc segments, parts of expandable segments."""

    address: IntArray
    size_bytes: IntArray
    requested_bytes: IntArray
    """Requested bytes of blocks."""
    heap: IntArray


class Moves(NamedTuple):
    """Moves in the allocator's order, as parallel arrays."""

    kind: npt.NDArray[np.uint8]
    """GIVE to TAKE: a block is freed; a segment or part of one is removed or added; a block is allocated."""
    span: IntArray
    """Position of the span."""
    moment: IntArray
    """Position in time, rising from 0."""


class ReuseRules(NamedTuple):
    """Rules for whether a free block serves a request; sizes in bytes."""

    sizes: RequestSizes
    max_split: int
    """max_split_size; NO_LIMIT if it is not set."""
    slack: int
    """max_non_split_rounding."""
    closed: bool
    """Expandable segments are off: the allocator uses none of the existing ones."""


class Parts(NamedTuple):
    """Parts of reserved memory at each position in time, in bytes."""

    requested: IntArray
    rounding: IntArray
    usable: IntArray
    unusable: IntArray
    misfits: int
    """Number of moves that contradict the state, because events are missing. If not 0, the parts are not exact."""


def walk(
    spans: Spans, moves: Moves, rules: ReuseRules, moments: int, *, earlier: tuple[int, ReuseRules] | None = None
) -> Parts:
    """Parts at each position in time. About 0.2 µs per move, 32 bytes per position and 50 per span; the first call compiles.

    earlier   the last position with other rules, and these rules
    """
    until, before = earlier or (-1, rules)
    ends = spans.address + spans.size_bytes
    places = distinct(np.concatenate([spans.address, ends]))
    begin, end = (np.searchsorted(places, at).astype(np.int32) for at in (spans.address, ends))
    return Parts(*_walk(spans, begin, end, places, moves, before, rules, until, moments))


class _State(NamedTuple):
    """Columns over the places at which free blocks and ranges start, and running sums."""

    places: IntArray
    free: Any
    """Places at which free blocks start. Adjacent ones of a segment merge. The expandable segments of a heap count as one
    (-1 - heap), because their ranges adjoin no other heap."""
    size: IntArray
    heap: Any
    segment: IntArray
    lost: IntArray
    mapped: Any
    """Places at which ranges of expandable segments start."""
    range_size: IntArray
    now: IntArray
    """Sums NOW_REQUESTED to NOW_UNUSABLE."""


NOW_REQUESTED: Final = 0
NOW_ROUNDING: Final = 1
NOW_FREE: Final = 2
NOW_UNUSABLE: Final = 3


@entry
def _walk(
    spans: Spans,
    begin: Any,
    end: Any,
    places: IntArray,
    moves: Moves,
    rules: ReuseRules,
    later: ReuseRules,
    until: int,
    moments: int,
) -> Any:
    count = len(places)
    requested, rounding = np.zeros(moments, np.int64), np.zeros(moments, np.int64)
    usable, unusable = np.zeros(moments, np.int64), np.zeros(moments, np.int64)
    segment_of = np.zeros(len(begin), np.int64)
    now = np.zeros(4, np.int64)
    state = _State(
        places, empty_set(count), np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.int64),
        np.zeros(count, np.int64), empty_set(count), np.zeros(count, np.int64), now,
    )  # fmt: skip
    segments, misfits, move = 0, 0, 0
    for moment in range(moments):
        if moment == until + 1:
            rules = later
            _evaluate_all(state, rules)
        while move < len(moves.kind) and moves.moment[move] == moment:
            kind, span = moves.kind[move], moves.span[move]
            low, high = begin[span], end[span]
            size, heap = spans.size_bytes[span], spans.heap[span]
            fits = True
            if kind == GIVE:
                fits = segment_of[span] != 0 and _add(state, low, high, heap, segment_of[span], rules)
            elif kind == ADD_SEGMENT:
                segments += 1
                fits = _add(state, low, high, heap, segments, rules)
            elif kind == MAP:
                _map(state, low, high)
                fits = _add(state, low, high, heap, -1 - heap, rules)
            else:
                at = _around(state, low, size)
                fits = at >= 0
                if fits:
                    if kind == TAKE:
                        segment_of[span] = state.segment[at]
                    elif kind == UNMAP:
                        _unmap(state, low, high)
                    _cut(state, at, low, high, rules)
            misfits += not fits
            if kind in (TAKE, GIVE):
                sign = 1 if kind == TAKE else -1
                now[NOW_REQUESTED] += sign * spans.requested_bytes[span]
                now[NOW_ROUNDING] += sign * (size - spans.requested_bytes[span])
            move += 1
        requested[moment], rounding[moment] = now[NOW_REQUESTED], now[NOW_ROUNDING]
        usable[moment], unusable[moment] = now[NOW_FREE] - now[NOW_UNUSABLE], now[NOW_UNUSABLE]
    return requested, rounding, usable, unusable, misfits


@lean
def _around(state: _State, low: int, size: int) -> Any:
    """Place of the free block that contains the whole range; -1 if there is none."""
    at = at_or_below(state.free[0], state.free[1], low)
    if at >= 0 and state.places[at] + state.size[at] < state.places[low] + size:
        at = -1
    return at


@lean
def _cut(state: _State, at: int, low: int, high: int, rules: ReuseRules) -> None:
    """Remove a range from a free block. The parts before and after it stay free."""
    start, end = state.places[at], state.places[at] + state.size[at]
    heap, segment = state.heap[at], state.segment[at]
    _remove_piece(state, at)
    if end > state.places[high]:
        _put_piece(state, high, end - state.places[high], heap, segment, rules)
    if at < low:
        _put_piece(state, at, state.places[low] - start, heap, segment, rules)


@lean
def _add(state: _State, low: int, high: int, heap: int, segment: int, rules: ReuseRules) -> Any:
    """Free a range and merge it with free neighbors of the same segment. False if a part of it is free already."""
    size = state.places[high] - state.places[low]
    before = at_or_below(state.free[0], state.free[1], high - 1) if high > low else low
    if before >= low or (before >= 0 and state.places[before] + state.size[before] > state.places[low]):
        return False
    if state.size[high] and state.segment[high] == segment:
        size += state.size[high]
        _remove_piece(state, high)
    if (
        before >= 0
        and state.segment[before] == segment
        and state.places[before] + state.size[before] == state.places[low]
    ):
        size += state.size[before]
        _remove_piece(state, before)
        low = before
    _put_piece(state, low, size, heap, segment, rules)
    return True


@lean
def _put_piece(state: _State, at: int, size: int, heap: int, segment: int, rules: ReuseRules) -> None:
    state.size[at], state.heap[at], state.segment[at] = size, heap, segment
    state.lost[at] = lost = _lost(state, at, rules)
    put(state.free[0], state.free[1], at)
    state.now[NOW_FREE] += size
    state.now[NOW_UNUSABLE] += lost


@lean
def _lost(state: _State, at: int, rules: ReuseRules) -> Any:
    """Unusable bytes of a free block."""
    size, heap = state.size[at], state.heap[at]
    if state.segment[at] < 0 and rules.sizes.first[heap] < rules.sizes.first[heap + 1]:
        if rules.closed:
            return size
        around = at_or_below(state.mapped[0], state.mapped[1], at)
        if around >= 0 and state.places[around] + state.range_size[around] == state.places[at] + size:
            return np.int64(0)  # it can grow by mapping more memory
    return np.int64(round(size * (1.0 - _share_served(rules, heap, size))))


@lean
def _evaluate_all(state: _State, rules: ReuseRules) -> None:
    """Evaluate all free blocks again, under other rules."""
    at = at_or_below(state.free[0], state.free[1], len(state.places) - 1)
    state.now[NOW_UNUSABLE] = 0
    while at >= 0:
        state.lost[at] = _lost(state, at, rules)
        state.now[NOW_UNUSABLE] += state.lost[at]
        at = at_or_below(state.free[0], state.free[1], at - 1)


@lean
def _remove_piece(state: _State, at: int) -> None:
    state.now[NOW_FREE] -= state.size[at]
    state.now[NOW_UNUSABLE] -= state.lost[at]
    state.size[at] = 0
    drop(state.free[0], state.free[1], at)


@lean
def _map(state: _State, low: int, high: int) -> None:
    size = state.places[high] - state.places[low]
    if state.range_size[high]:
        size += state.range_size[high]
        _remove_range(state, high)
    before = at_or_below(state.mapped[0], state.mapped[1], low)
    if before >= 0 and state.places[before] + state.range_size[before] == state.places[low]:
        size += state.range_size[before]
        low = before
    state.range_size[low] = max(size, state.range_size[low])
    put(state.mapped[0], state.mapped[1], low)


@lean
def _unmap(state: _State, low: int, high: int) -> None:
    at = at_or_below(state.mapped[0], state.mapped[1], low)
    if at < 0:
        return
    end = state.places[at] + state.range_size[at]
    _remove_range(state, at)
    if end > state.places[high]:
        state.range_size[high] = end - state.places[high]
        put(state.mapped[0], state.mapped[1], high)
    if at < low:
        state.range_size[at] = state.places[low] - state.places[at]
        put(state.mapped[0], state.mapped[1], at)


@lean
def _remove_range(state: _State, at: int) -> None:
    state.range_size[at] = 0
    drop(state.mapped[0], state.mapped[1], at)


@lean
def _share_served(rules: ReuseRules, heap: int, size: int) -> float:
    """Share of the heap's requested bytes that a free block of this size serves."""
    requests = rules.sizes
    start, end = requests.first[heap], requests.first[heap + 1]
    if start == end:
        return 0.0
    sizes = requests.size_bytes[start:end]
    upper = np.searchsorted(sizes, size, side="right")
    served = requests.share[start + upper - 1] if upper > 0 else 0.0
    if size >= rules.max_split:
        # An oversize block serves oversize requests that leave a remainder below the slack.
        lower = np.searchsorted(sizes, max(rules.max_split, size - rules.slack + 1), side="left")
        served -= requests.share[start + lower - 1] if lower > 0 else 0.0
    return served if served > 0.0 else 0.0
