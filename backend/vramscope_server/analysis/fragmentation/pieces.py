"""The free pieces of a device through a recorded history, and how many of their bytes are stranded (see fragmentation.py).

numba, because there are millions of moves.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.compiled import entry, inner
from vramscope_server.analysis.fragmentation.demand import Demand

Whole = npt.NDArray[np.int64]

NO_LIMIT: Final = 1 << 62

TAKE: Final = 0
GIVE: Final = 1
ADD_SEGMENT: Final = 2
REMOVE_SEGMENT: Final = 3
MAP: Final = 4
UNMAP: Final = 5


class Moves(NamedTuple):
    """A history as parallel arrays, in the allocator's order."""

    kind: npt.NDArray[np.uint8]
    """TAKE ... UNMAP: a block is used, is free again; a segment of cudaMalloc's, a part of an expandable one comes, goes"""
    address: Whole
    size_bytes: Whole
    requested_bytes: Whole
    """TAKE, GIVE"""
    heap: Whole
    item: Whole
    """TAKE, GIVE: which allocation"""


class Rules(NamedTuple):
    """What decides whether a free block serves a request; in bytes."""

    demand: Demand
    max_split: int
    """max_split_size; NO_LIMIT where it is not set"""
    slack: int
    """max_non_split_rounding"""


class Parts(NamedTuple):
    """After each move, in bytes; their sum is what is reserved."""

    requested: Whole
    rounding: Whole
    usable: Whole
    stranded: Whole
    misfits: int
    """moves that fit nowhere, for the history is not complete: with any the parts are not exact"""


def walk(moves: Moves, rules: Rules) -> Parts:
    """The parts after each move. About 0.3 µs and 40 bytes a move; a few seconds more the first time, to compile."""
    items = int(moves.item.max(initial=-1)) + 1
    more = np.isin(moves.kind, (TAKE, ADD_SEGMENT, MAP)).astype(np.int64)
    fewer = np.isin(moves.kind, (GIVE, REMOVE_SEGMENT)).astype(np.int64)
    cuts = np.count_nonzero(moves.kind == UNMAP)
    room = int(np.cumsum(more - fewer).max(initial=0)) + 2 * int(cuts) + 16
    return Parts(*_walk(moves, items, room, rules))


class _State(NamedTuple):
    """Two tables by address, their columns as ADDRESS ... STRANDED, and running sums."""

    free: Whole
    """free pieces. Those of one segment merge; the expandable segments of a heap count as one (-1 - heap), for their ranges
    adjoin no other heap's"""
    mapped: Whole
    """ranges of expandable segments"""
    now: Whole
    """PIECES ... NOW_STRANDED"""


ADDRESS: Final = 0
SIZE: Final = 1
HEAP: Final = 2
SEGMENT: Final = 3
STRANDED: Final = 4

PIECES: Final = 0
RANGES: Final = 1
NOW_REQUESTED: Final = 2
NOW_ROUNDING: Final = 3
NOW_FREE: Final = 4
NOW_STRANDED: Final = 5


@entry
def _walk(moves: Moves, items: int, room: int, rules: Rules) -> Parts:
    n = len(moves.kind)
    requested, rounding = np.zeros(n, np.int64), np.zeros(n, np.int64)
    usable, stranded = np.zeros(n, np.int64), np.zeros(n, np.int64)
    segment_of = np.zeros(items, np.int64)
    state = _State(np.zeros((5, room), np.int64), np.zeros((5, room), np.int64), np.zeros(6, np.int64))
    now = state.now
    segments, misfits = 0, 0
    for move in range(n):
        kind, address, size, heap = moves.kind[move], moves.address[move], moves.size_bytes[move], moves.heap[move]
        if kind == GIVE:
            segment = segment_of[moves.item[move]]
            if segment == 0:
                misfits += 1
            else:
                _add(state, address, size, heap, segment, rules)
        elif kind == ADD_SEGMENT:
            segments += 1
            _add(state, address, size, heap, segments, rules)
        elif kind == MAP:
            _map(state, address, size, heap)
            _add(state, address, size, heap, -1 - heap, rules)
        else:
            at = _around(state, address, size)
            if at < 0:
                misfits += 1
            else:
                if kind == TAKE:
                    segment_of[moves.item[move]] = state.free[SEGMENT, at]
                elif kind == UNMAP:
                    _unmap(state, address, size)
                _cut(state, at, address, size, rules)
        if kind in (TAKE, GIVE):
            sign = 1 if kind == TAKE else -1
            now[NOW_REQUESTED] += sign * moves.requested_bytes[move]
            now[NOW_ROUNDING] += sign * (size - moves.requested_bytes[move])
        requested[move], rounding[move] = now[NOW_REQUESTED], now[NOW_ROUNDING]
        usable[move], stranded[move] = now[NOW_FREE] - now[NOW_STRANDED], now[NOW_STRANDED]
    return Parts(requested, rounding, usable, stranded, misfits)


@inner
def _around(state: _State, address: int, size: int) -> Any:
    """Position of the free piece that has all of the range; -1: none."""
    at = _find(state.free, state.now[PIECES], address)
    if at >= 0 and state.free[ADDRESS, at] + state.free[SIZE, at] < address + size:
        at = -1
    return at


@inner
def _cut(state: _State, at: int, address: int, size: int, rules: Rules) -> None:
    """Take a range out of a free piece; what lies before and behind it stays free."""
    free = state.free
    start, end = free[ADDRESS, at], free[ADDRESS, at] + free[SIZE, at]
    heap, segment = free[HEAP, at], free[SEGMENT, at]
    _remove_piece(state, at)
    if end > address + size:
        _put_piece(state, at, address + size, end - address - size, heap, segment, rules)
    if start < address:
        _put_piece(state, at, start, address - start, heap, segment, rules)


@inner
def _add(state: _State, address: int, size: int, heap: int, segment: int, rules: Rules) -> None:
    """A range becomes free, and one piece with its free neighbours of the same segment."""
    free = state.free
    at = _find(free, state.now[PIECES], address)
    if at >= 0 and free[SEGMENT, at] == segment and free[ADDRESS, at] + free[SIZE, at] == address:
        address, size = free[ADDRESS, at], size + free[SIZE, at]
        _remove_piece(state, at)
        at -= 1
    at += 1
    if at < state.now[PIECES] and free[SEGMENT, at] == segment and free[ADDRESS, at] == address + size:
        size += free[SIZE, at]
        _remove_piece(state, at)
    _put_piece(state, at, address, size, heap, segment, rules)


@inner
def _put_piece(state: _State, at: int, address: int, size: int, heap: int, segment: int, rules: Rules) -> None:
    lost = round(size * (1.0 - _share_served(rules, heap, size)))
    if segment < 0 and rules.demand.first[heap] < rules.demand.first[heap + 1]:
        range_at = _find(state.mapped, state.now[RANGES], address)
        if state.mapped[ADDRESS, range_at] + state.mapped[SIZE, range_at] == address + size:
            lost = 0  # more can be mapped behind it
    _insert(state.free, state.now[PIECES], at, (address, size, heap, segment, lost))
    state.now[PIECES] += 1
    state.now[NOW_FREE] += size
    state.now[NOW_STRANDED] += lost


@inner
def _remove_piece(state: _State, at: int) -> None:
    state.now[NOW_FREE] -= state.free[SIZE, at]
    state.now[NOW_STRANDED] -= state.free[STRANDED, at]
    _delete(state.free, state.now[PIECES], at)
    state.now[PIECES] -= 1


@inner
def _map(state: _State, address: int, size: int, heap: int) -> None:
    mapped, now = state.mapped, state.now
    start, end = address, address + size
    at = _find(mapped, now[RANGES], start)
    if at >= 0 and mapped[ADDRESS, at] + mapped[SIZE, at] == start:
        start = mapped[ADDRESS, at]
        _delete(mapped, now[RANGES], at)
        now[RANGES] -= 1
        at -= 1
    at += 1
    if at < now[RANGES] and mapped[ADDRESS, at] == end:
        end += mapped[SIZE, at]
        _delete(mapped, now[RANGES], at)
        now[RANGES] -= 1
    _insert(mapped, now[RANGES], at, (start, end - start, heap, 0, 0))
    now[RANGES] += 1


@inner
def _unmap(state: _State, address: int, size: int) -> None:
    mapped, now = state.mapped, state.now
    at = _find(mapped, now[RANGES], address)
    if at < 0:
        return
    start, end, heap = mapped[ADDRESS, at], mapped[ADDRESS, at] + mapped[SIZE, at], mapped[HEAP, at]
    _delete(mapped, now[RANGES], at)
    now[RANGES] -= 1
    if end > address + size:
        _insert(mapped, now[RANGES], at, (address + size, end - address - size, heap, 0, 0))
        now[RANGES] += 1
    if start < address:
        _insert(mapped, now[RANGES], at, (start, address - start, heap, 0, 0))
        now[RANGES] += 1


@inner
def _find(table: Whole, count: int, address: int) -> int:
    """Position of the last row that begins at or before the address; -1: none does."""
    return int(np.searchsorted(table[ADDRESS, :count], address, side="right")) - 1


@inner
def _insert(table: Whole, count: int, at: int, row: tuple[int, int, int, int, int]) -> None:
    for column in range(5):
        for index in range(count, at, -1):
            table[column, index] = table[column, index - 1]
        table[column, at] = row[column]


@inner
def _delete(table: Whole, count: int, at: int) -> None:
    for column in range(5):
        for index in range(at, count - 1):
            table[column, index] = table[column, index + 1]


@inner
def _share_served(rules: Rules, heap: int, size: int) -> float:
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
