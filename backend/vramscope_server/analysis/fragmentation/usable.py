"""The free pieces of a device through a recorded history, and how many of their bytes are unusable (see fragmentation.py).

numba, because there are millions of moves. A step takes as long with a million free pieces as with ten (``places``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.fragmentation.placement import at_or_below, drop, empty_set, put
from vramscope_server.analysis.fragmentation.request_sizes import RequestSizes
from vramscope_server.analysis.numba_compile import entry, lean

Whole = npt.NDArray[np.int64]

NO_LIMIT: Final = 1 << 62

GIVE: Final = 0
REMOVE_SEGMENT: Final = 1
UNMAP: Final = 2
ADD_SEGMENT: Final = 3
MAP: Final = 4
TAKE: Final = 5
"""Of several at one moment what goes comes first, and what comes before who uses it: in this order."""


class Spans(NamedTuple):
    """Memory that comes and goes as a whole: blocks, segments of cudaMalloc's, parts of expandable ones. Parallel arrays."""

    address: Whole
    size_bytes: Whole
    requested_bytes: Whole
    """of blocks"""
    heap: Whole


class Moves(NamedTuple):
    """A history as parallel arrays, in the allocator's order."""

    kind: npt.NDArray[np.uint8]
    """GIVE ... TAKE: a block is free again; a segment, a part of an expandable one goes, comes; a block is used"""
    span: Whole
    """which"""
    moment: Whole
    """rising, from 0"""


class ReuseRules(NamedTuple):
    """What decides whether a free block serves a request; in bytes."""

    demand: RequestSizes
    max_split: int
    """max_split_size; NO_LIMIT where it is not set"""
    slack: int
    """max_non_split_rounding"""
    closed: bool
    """expandable segments are switched off: the allocator takes nothing of those that are there"""


class Parts(NamedTuple):
    """At each moment, in bytes; their sum is what is reserved."""

    requested: Whole
    rounding: Whole
    usable: Whole
    unusable: Whole
    misfits: int
    """moves that fit nowhere, for the history is not complete: with any the parts are not exact"""


def walk(
    spans: Spans, moves: Moves, rules: ReuseRules, moments: int, *, earlier: tuple[int, ReuseRules] | None = None
) -> Parts:
    """The parts at so many moments. Some 0.2 µs a move, 32 bytes a moment and 50 a span; more the first time, to compile.

    earlier   (the last moment at which they held, other rules)
    """
    until, before = earlier or (-1, rules)
    ends = spans.address + spans.size_bytes
    places = np.unique(np.concatenate([spans.address, ends]))
    begin, end = (np.searchsorted(places, at).astype(np.int32) for at in (spans.address, ends))
    return Parts(*_walk(spans, begin, end, places, moves, before, rules, until, moments))


class _State(NamedTuple):
    """Columns over the places at which pieces and ranges begin, and running sums."""

    places: Whole
    free: Any
    """the set of the places at which free pieces begin. Those of one segment merge; the expandable segments of a heap count as
    one (-1 - heap), for their ranges adjoin no other heap's"""
    size: Whole
    heap: Any
    segment: Whole
    lost: Whole
    mapped: Any
    """the set of the places at which ranges of expandable segments begin"""
    range_size: Whole
    now: Whole
    """NOW_REQUESTED ... NOW_UNUSABLE"""


NOW_REQUESTED: Final = 0
NOW_ROUNDING: Final = 1
NOW_FREE: Final = 2
NOW_UNUSABLE: Final = 3


@entry
def _walk(
    spans: Spans,
    begin: Any,
    end: Any,
    places: Whole,
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
            _judge_anew(state, rules)
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
    """Place of the free piece that has all of the range; -1: none."""
    at = at_or_below(state.free[0], state.free[1], low)
    if at >= 0 and state.places[at] + state.size[at] < state.places[low] + size:
        at = -1
    return at


@lean
def _cut(state: _State, at: int, low: int, high: int, rules: ReuseRules) -> None:
    """Take a range out of a free piece; what lies before and behind it stays free."""
    start, end = state.places[at], state.places[at] + state.size[at]
    heap, segment = state.heap[at], state.segment[at]
    _remove_piece(state, at)
    if end > state.places[high]:
        _put_piece(state, high, end - state.places[high], heap, segment, rules)
    if at < low:
        _put_piece(state, at, state.places[low] - start, heap, segment, rules)


@lean
def _add(state: _State, low: int, high: int, heap: int, segment: int, rules: ReuseRules) -> Any:
    """A range becomes free, and one piece with its free neighbours of the same segment. False where some of it is free."""
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
    """How many bytes of the free piece are unusable."""
    size, heap = state.size[at], state.heap[at]
    if state.segment[at] < 0 and rules.demand.first[heap] < rules.demand.first[heap + 1]:
        if rules.closed:
            return size
        around = at_or_below(state.mapped[0], state.mapped[1], at)
        if around >= 0 and state.places[around] + state.range_size[around] == state.places[at] + size:
            return np.int64(0)  # more can be mapped behind it
    return np.int64(round(size * (1.0 - _share_served(rules, heap, size))))


@lean
def _judge_anew(state: _State, rules: ReuseRules) -> None:
    """What is unusable of all that is free, by other rules than before."""
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
    """Of the heap's demand, in requests that a free block of that size serves."""
    demand = rules.demand
    start, end = demand.first[heap], demand.first[heap + 1]
    if start == end:
        return 0.0
    sizes = demand.size_bytes[start:end]
    upper = np.searchsorted(sizes, size, side="right")
    served = demand.share[start + upper - 1] if upper > 0 else 0.0
    if size >= rules.max_split:
        # An oversize block serves oversize requests that leave less than the slack.
        lower = np.searchsorted(sizes, max(rules.max_split, size - rules.slack + 1), side="left")
        served -= demand.share[start + lower - 1] if lower > 0 else 0.0
    return served if served > 0.0 else 0.0
