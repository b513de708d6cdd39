"""Whether what a window begins with is known: a model that was put on the device, and next to nothing let go before.

The first window of a run mostly begins there. The allocator's counters tell what was ever let go; where that is nothing, what was
there are all requests that were made, and only their order is open. In a segment it is that of the addresses, as each block was cut
from what the one before had left; among segments it is any in which the allocator comes to this very layout. Such orders are made
here, by taking at each moment a block that best fit puts where it lies, and each is replayed under the recorded settings before it
is believed.
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
"""Number of random orders, beside those that fill the older and the younger segments first."""
MOST_WORK: Final = 50_000_000
"""Maximum number of comparisons to find an order for one pool, about a nanosecond each."""
FEW_BYTES: Final = SMALL_BYTES
"""Maximum bytes that may have been freed in all: less than any block of the large pool."""
NEVER: Final = ("segment.all.freed", "reserved_bytes.all.freed", "num_alloc_retries", "num_ooms")
"""Counters that are 0 if the cache was never returned."""


@dataclass(frozen=True, eq=False)
class WindowStart:
    """What was there, as it may have come there."""

    orders: tuple[IntArray, ...]
    """Positions among the program's first allocations, all different; the first order follows the segments' age, as far as
    known."""
    is_open: bool
    """True if other orders exist, or something was freed before."""


@lru_cache(maxsize=4)
def beginning_of(trace: Trace) -> WindowStart | None:
    """How it began; None: it is not known that this is all that was asked for, or no order was found that comes to it."""
    freed_bytes = _let_go_bytes(trace)
    if freed_bytes is None or freed_bytes > FEW_BYTES:
        return None
    initial, program = exact_replay(trace).initial, derivation_of(trace).program
    if initial is None or initial.segment_pool.any():
        return None
    asked = program.rows(np.flatnonzero((program.event < 0) & (program.op == ALLOC)))
    large = initial.segment_large > 0
    # The order of small blocks is left open where some were let go, as their segments may have holes, and where none is found.
    for known in [large] if freed_bytes else [np.ones_like(large), large]:
        orders = _orders(trace, initial, asked, known)
        if orders:
            return WindowStart(orders, is_open=freed_bytes > 0 or not known.all() or _has_others(initial))
    return None


def _let_go_bytes(trace: Trace) -> int | None:
    """In all before the window, blocks of the allocator; None: not known."""
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
    """Whether a pool has several segments, of which any may have come first. In one that is expandable blocks lie as they came."""
    pools = np.unique(np.stack([initial.segment_stream, initial.segment_large]), axis=1, return_inverse=True)[1].ravel()
    made = np.bincount(pools, weights=initial.segment_expandable == 0)
    return bool(np.any((made > 1) | ((made > 0) & (made < np.bincount(pools)))))


def _orders(
    trace: Trace, initial: InitialState, beginning: Program, known: npt.NDArray[np.bool_]
) -> tuple[IntArray, ...]:
    """Those that give this layout, all different. ``known``: of which segments it must be so."""
    found: dict[bytes, IntArray] = {}
    for order in _candidates(trace, initial, beginning, known):
        if order.tobytes() not in found and _comes_to(trace, initial, beginning.rows(order), known):
            found[order.tobytes()] = order
    return tuple(found.values())


def _candidates(
    trace: Trace, initial: InitialState, beginning: Program, known: npt.NDArray[np.bool_]
) -> Iterator[IntArray]:
    """Orders by best fit alone: by the segments' age, the other way round, and drawn ones."""
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
        for kind in range(int(kind_of.max()) + 1):  # each has segments of its own: they do not meet
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
    """A number for each segment: of those that are alike one serves as well as another."""
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
    """An order in which blocks of one pool, by segment and address, are put where they lie; none where none was found.

    Where it gets stuck it goes back to the last block for which another could have come.

    begins   the first block of each segment, and the end
    making   in which order segments are made, where that is open
    filling  order in which existing blocks are tried
    first    for each block, whether a new segment is made wherever that can be (1), or only where none that is there will do (0)
    """
    segments, count = len(room), len(size)
    following = begins[:-1].copy()
    left = np.full(segments, -1, np.int64)  # behind the last block; -1: the segment is not there yet
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
    """Whether these requests alone give the known segments, under the recorded settings. Their addresses are none of it."""
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
