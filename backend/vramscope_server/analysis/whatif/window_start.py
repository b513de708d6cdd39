"""Finds the order in which the blocks at the start of a window were allocated.

The first window of a run usually starts when a model is on the device and almost nothing was freed. The allocator's counters
show how much was ever freed. If that is nothing, the blocks in memory are all requests so far, and only their order is unknown.

Within a segment the order is that of the addresses, because each block was cut from the rest behind the previous one. Among
segments any order is possible that leads to this layout. This module builds such orders: at each point it takes a block that
best fit places at its recorded address. An order is used only if its replay under the recorded settings gives the layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import STATES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.simulator.initial_state import InitialState
from vramscope_server.analysis.simulator.program import ALLOC, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, replay
from vramscope_server.analysis.simulator.rounding import rounded
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.block_sizes import SMALL_BYTES
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.baseline_replay import USUAL_TOTAL_BYTES, exact_replay
from vramscope_server.analysis.whatif.program import derivation_of

DRAWN: Final = 4
"""Number of random orders that are tried, after those that fill the oldest or the newest segment first."""
MOST_WORK: Final = 50_000_000
"""Maximum number of comparisons to find an order for one pool, about a nanosecond each."""
FEW_BYTES: Final = SMALL_BYTES
"""Maximum bytes freed before the window: less than any block of the large pool."""
NEVER: Final = ("segment.all.freed", "reserved_bytes.all.freed", "num_alloc_retries", "num_ooms")
"""Counters that are 0 if the cache was never returned."""


@dataclass(frozen=True, eq=False)
class WindowStart:
    """Orders in which the initial blocks may have been allocated."""

    orders: tuple[IntArray, ...]
    """Different orders, each as positions among the program's first allocations. The first one follows the age of the segments as
    far as it is known."""
    is_open: bool
    """True if other orders exist, or something was freed before."""


@lru_cache(maxsize=4)
def beginning_of(trace: Trace) -> WindowStart | None:
    """Return the possible orders. None if other requests may have been made before, or no order gives the layout."""
    freed_bytes = _let_go_bytes(trace)
    if freed_bytes is None or freed_bytes > FEW_BYTES:
        return None
    initial, program = exact_replay(trace).initial, derivation_of(trace).program
    if initial is None or initial.segment_pool.any():
        return None
    asked = program.rows(np.flatnonzero((program.event < 0) & (program.op == ALLOC)))
    large = initial.segment_large > 0
    # The order of small blocks stays open if some were freed, as their segments may have holes, and if no order is found.
    for known in [large] if freed_bytes else [np.ones_like(large), large]:
        orders = _orders(trace, initial, asked, known)
        if orders:
            return WindowStart(orders, is_open=freed_bytes > 0 or not known.all() or _has_others(initial))
    return None


def _let_go_bytes(trace: Trace) -> int | None:
    """Return the bytes of blocks that were freed before the window; None if unknown."""
    if trace.start is None or not len(trace.start.segments):
        return None
    counted, state = trace.start.counters, trace.start.blocks.state
    here = np.count_nonzero(state == STATES.index("active_allocated"))
    if (
        any(counted.get(name) != 0 for name in NEVER)
        # counters that the program reset report less than what is there
        or counted.get("allocation.all.allocated", -1) - counted.get("allocation.all.freed", 0) != here
        or counted.get("reserved_bytes.all.allocated") != trace.start.reserved_bytes
        or np.any(state == STATES.index("active_pending_free"))
    ):
        return None
    return counted.get("allocated_bytes.all.freed")


def _has_others(initial: InitialState) -> bool:
    """Return True if a pool has several segments, so that their order is open. An expandable one keeps the order of its blocks."""
    pools = np.unique(np.stack([initial.segment_stream, initial.segment_large]), axis=1, return_inverse=True)[1].ravel()
    made = np.bincount(pools, weights=initial.segment_expandable == 0)
    return bool(np.any((made > 1) | ((made > 0) & (made < np.bincount(pools)))))


def _orders(
    trace: Trace, initial: InitialState, beginning: Program, known: npt.NDArray[np.bool_]
) -> tuple[IntArray, ...]:
    """Return different orders that give this layout. ``known`` marks the segments that are compared."""
    found: dict[bytes, IntArray] = {}
    for order in _candidates(trace, initial, beginning, known):
        if order.tobytes() not in found and _comes_to(trace, initial, beginning.rows(order), known):
            found[order.tobytes()] = order
    return tuple(found.values())


def _candidates(
    trace: Trace, initial: InitialState, beginning: Program, known: npt.NDArray[np.bool_]
) -> Iterator[IntArray]:
    """Yield candidates by best fit alone: segments by age, in the opposite order, and in random orders."""
    there = np.flatnonzero(initial.block_item >= 0)  # by address
    count = len(initial.segment_age)
    if len(there) != len(beginning):
        return
    position = initial.block_item[there]  # the first items of the program are the blocks that were already there
    home, size = initial.block_segment[there], initial.block_size_bytes[there]
    divisions = np.array(trace.settings_at(-1).divisions, np.int64)
    asked = np.array([rounded(requested, divisions) for requested in beginning.size_bytes[position].tolist()], np.int64)
    kind_of = _kinds(initial)
    draw = np.random.default_rng(0)
    age = initial.segment_age
    for nth in range(2 + DRAWN):
        making = (age, -age)[nth] if nth < 2 else age if nth % 2 else draw.permutation(count)
        filling = making if nth < 2 else draw.permutation(count)
        order: list[IntArray] = []
        for kind in range(int(kind_of.max()) + 1):  # kinds do not share segments, so their orders are independent
            segments = np.flatnonzero(kind_of == kind)
            rows = np.flatnonzero(kind_of[home] == kind)
            # in an expandable segment it is the order of the addresses
            if known[segments[0]] and not initial.segment_expandable[segments[0]]:
                begins = np.searchsorted(home[rows], np.append(segments, count))
                made, filled = (np.argsort(rank[segments], kind="stable") for rank in (making, filling))
                first = np.zeros(len(rows), np.int64) if nth < 2 else draw.integers(0, 2, len(rows))
                room = initial.segment_size_bytes[segments]
                rows = rows[by_best_fit(begins, size[rows], asked[rows], room, made, filled, first)]
            order.append(rows)
        rows = np.concatenate(order)
        if len(rows) == len(there):
            yield position[rows]


def _kinds(initial: InitialState) -> IntArray:
    """Return a number for each segment. Segments of one number can serve the same requests."""
    kinds = np.stack([initial.segment_stream, initial.segment_large, initial.segment_expandable])
    return np.unique(kinds, axis=1, return_inverse=True)[1].ravel()


@entry
def by_best_fit(
    begins: IntArray,
    size: IntArray,
    asked: IntArray,
    room: IntArray,
    making: IntArray,
    filling: IntArray,
    first: IntArray,
) -> Any:
    """Return an order in which best fit places the blocks of one pool at their addresses; empty if none was found.

    A search with backtracking: without a possible next block it returns to the last one that had an alternative.

    begins   the first block of each segment, and the end
    making   the order in which segments are made, where that is open
    filling  the order in which existing blocks are tried
    first    for each block: 1 makes a new segment wherever possible, 0 only if no existing one has room
    """
    segments, count = len(room), len(size)
    following = begins[:-1].copy()
    left = np.full(segments, -1, np.int64)  # bytes behind the last block; -1: the segment does not exist yet
    since = np.zeros(segments, np.int64)
    home = np.empty(count, np.int64)
    looked_at = np.zeros(count + 1, np.int64)
    order = np.empty(count, np.int64)
    placed = work = 0
    while placed < count:
        chosen = -1
        while looked_at[placed] < 2 * segments and chosen < 0 and work <= MOST_WORK:
            nth = looked_at[placed]
            looked_at[placed] += 1
            work += 1
            new = (nth < segments) == (first[placed] > 0)
            one = (making if new else filling)[nth % segments]
            is_there = left[one] >= 0
            if following[one] == begins[one + 1] or is_there == new:
                continue
            ask = asked[following[one]]
            fits = left[one] >= ask or not is_there
            work += segments
            for other in range(segments):
                # from PyTorch 2.13 on, the older of two equal blocks is taken
                if left[other] >= ask and other != one:
                    nearer = left[other] < left[one] or (left[other] == left[one] and since[other] < since[one])
                    fits = fits and is_there and not nearer
            chosen = one if fits else -1
        if chosen >= 0:
            block = following[chosen]
            if left[chosen] < 0:
                left[chosen], since[chosen] = room[chosen], placed
            left[chosen] -= size[block]
            following[chosen] += 1
            order[placed], home[placed] = block, chosen
            placed += 1
            looked_at[placed] = 0
        elif placed == 0 or work > MOST_WORK:
            return order[:0]
        else:
            placed -= 1
            last = home[placed]
            following[last] -= 1
            left[last] = left[last] + size[order[placed]] if following[last] > begins[last] else -1
    return order


def _comes_to(trace: Trace, initial: InitialState, beginning: Program, known: npt.NDArray[np.bool_]) -> bool:
    """Return True if these requests alone give the known segments under the recorded settings, at any addresses."""
    there = (initial.block_item >= 0) & known[initial.block_segment]
    beginning = beginning.rows(np.flatnonzero(np.isin(beginning.item, initial.block_item[there])))
    done = replay(
        beginning,
        trace.settings_at(-1),
        profile=profile_of(trace.torch)[0],
        device_bytes=UNLIMITED,
        device_total_bytes=trace.device_total_bytes or USUAL_TOTAL_BYTES,
        readings=True,
        statistics=0,
    )
    assert done.readings is not None
    address = np.zeros(len(initial.block_item), np.int64)
    address[beginning.item] = done.readings.address
    home, moved = initial.block_segment[there], address[initial.block_item[there]] - initial.block_address[there]
    segments, first_block = np.unique(home, return_index=True)
    as_much = done.end["reserved_bytes"] == initial.segment_size_bytes[known].sum()
    return bool(as_much) and np.array_equal(moved, moved[first_block][np.searchsorted(segments, home)])
