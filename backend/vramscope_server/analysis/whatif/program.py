"""The program of a trace: the requests of the training in their order, without the allocator's own actions.

A history has both. Allocations and frees are requests of the training. Segments are made and returned by the allocator, except
that ``empty_cache()`` returns them too. Such a call is distinguished from a retry by the next event, and by whether the device
could be full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import times
from vramscope_server.analysis.simulator.initial_state import InitialState
from vramscope_server.analysis.simulator.program import (
    ALLOC,
    EMPTY_CACHE,
    EMPTY_POOL,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    POOL_FREEABLE,
    Program,
)
from vramscope_server.analysis.simulator.rounding import rounded
from vramscope_server.analysis.simulator.segments import GRANULE, OWN_SEGMENT
from vramscope_server.analysis.trace.block_sizes import SMALL_BYTES
from vramscope_server.analysis.trace.lifetimes import SMALL_SEGMENT_BYTES
from vramscope_server.analysis.trace.trace import Trace, reserved_after
from vramscope_server.analysis.trace.types import ALLOC as ALLOCATED
from vramscope_server.analysis.trace.types import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, Layout

SNAPSHOT, OOM, FREED = (ACTIONS.index(name) for name in ("snapshot", "oom", "free_completed"))


@dataclass(frozen=True)
class Derivation:
    """A program, and the rows of the trace that it came from."""

    program: Program
    item_of_life: npt.NDArray[np.int32]
    """Item of the program for each allocation of ``trace.lives``."""
    streams: IntArray
    """Stream handles, in the program's order."""
    pool_of: IntArray
    """Pool of the program, by position in Trace.pools."""
    releases: IntArray
    """Events at which the allocator returned memory to make room: retries, collections."""
    releases_are_guessed: bool
    """True if neither counters nor the device size distinguish them from empty_cache()."""
    empty_caches: int
    unseen_empty_caches: int | None
    """Calls of empty_cache() without effect that were not recorded, by the allocator's own counters; None: unknown."""
    failed: IntArray
    """Events of requests that failed."""
    ended_by_failure: bool
    """True if nothing was requested after the last failure: the run died of it."""
    room_low_bytes: int
    """Bytes that this process could reserve, because it did."""
    room_high_bytes: int | None
    """Bytes that this process could not exceed, from the device, the limit or a failed request; None: unknown."""
    notes: list[str] = field(default_factory=list)


def program_of(trace: Trace) -> Program:
    """Return the requests of the training. Initial blocks come first, as ALLOCs with event -1. Takes O(events log events)."""
    return derivation_of(trace).program


@lru_cache(maxsize=4)
def derivation_of(trace: Trace) -> Derivation:
    """Return the program with its sources. Cached for the newest traces, as each what-if needs it."""
    lives, events = trace.lives, trace.events
    count = len(events)
    handles = [lives.stream, events.stream[events.action == OOM], trace.beginning.segments.stream]
    streams = np.unique(np.concatenate(handles).astype(np.uint64)).astype(np.int64)
    rank = {int(handle): at for at, handle in enumerate(streams)}
    private = iter(range(1, len(trace.pools) + 1))
    pool_of = np.array([0 if pool == (0, 0) else next(private) for pool in map(tuple, trace.pools)] or [0], np.int64)
    room = _room(trace)
    bursts = _bursts(trace)
    behind_calls = _behind_calls(trace)
    explicit = [burst for burst in bursts if burst.first in behind_calls or not _own(trace, burst, room)]
    failed = np.flatnonzero(events.action == OOM)
    died = len(failed) and not np.any(events.action[failed[-1] :] == ALLOCATED)

    # Columns of rows (event, order within it, op, life or -1, size, stream, pool); put in order, then numbered.
    life = np.arange(len(lives))
    size, stream = lives.requested_bytes, np.array([rank[int(handle)] for handle in lives.stream], np.int64)
    pool = pool_of[lives.pool]
    rows = [_rows(lives.alloc_event, ALLOC, life, size, stream, pool, within=life)]
    # skip_actions may leave one of the two out of the history
    at_once = lives.completed_event <= lives.free_requested_event + 1
    at_once &= (lives.free_requested_event >= 0) & (lives.completed_event < count)
    later = ~at_once & (lives.free_requested_event < count)
    done = ~at_once & (lives.completed_event < count)
    rows.append(_rows(lives.free_requested_event[at_once], FREE, life[at_once]))
    behind = len(lives)  # frees of initial blocks come after all allocations
    rows.append(_rows(lives.free_requested_event[later], FREE_REQUESTED, life[later], within=behind + life[later]))
    rows.append(_rows(lives.completed_event[done], FREE_COMPLETED, life[done]))
    for nth, event in enumerate(failed):
        one = np.array([event])
        asked, handle = events.size_bytes[one], np.array([rank[int(events.stream[event])]])
        where = pool_of[np.maximum(events.pool[one], 0)]
        rows.append(_rows(one, ALLOC, np.array([-2 - nth]), asked, handle, where))
        if not (died and event == failed[-1]):
            rows.append(_rows(one, FREE, np.array([-2 - nth]), within=np.ones(1)))
    freeable: set[int] = set()
    for burst in bursts:
        used = {int(one) for one in pool_of[np.maximum(events.pool[burst.first : burst.last + 1], 0)]} - {0}
        rows.extend(
            _rows(np.array([burst.first]), POOL_FREEABLE, np.array([-1]), pool=np.array([one]))
            for one in sorted(used - freeable)
        )
        freeable |= used
        if burst in explicit:
            alone = used and not np.any(pool_of[np.maximum(events.pool[burst.first : burst.last + 1], 0)] == 0)
            returns, of = (EMPTY_POOL, max(used)) if alone and len(used) == 1 else (EMPTY_CACHE, 0)
            rows.append(_rows(np.array([burst.first]), returns, np.array([-1]), pool=np.array([of]), within=np.ones(1)))
    given_back = {burst.first for burst in explicit}
    unaffected = [before for before, first in zip(trace.emptied, behind_calls, strict=True) if first not in given_back]
    for before in unaffected:
        at, place = (before - 1, 2 * behind) if before else (0, -1)  # after everything of the previous event
        rows.append(_rows(np.array([at]), EMPTY_CACHE, np.array([-1]), within=np.array([place])))
    # One column at a time: all at once would need more memory than any other part of a what-if.
    order = np.lexsort([np.concatenate([row[at] for row in rows]) for at in (1, 0)])
    when, op, who, size, stream, pool = (np.concatenate([row[at] for row in rows])[order] for at in (0, 2, 3, 4, 5, 6))
    del rows
    born = op == ALLOC
    number = np.cumsum(born) - 1
    item_of = np.full(len(lives) + len(failed), -1, np.int64)  # lives, then failed requests
    slot = np.where(who <= -2, len(lives) - 2 - who, who)
    item_of[slot[born]] = number[born]
    program = Program(
        op=op.astype(np.uint8),
        item=np.where(who == -1, -1, item_of[slot]).astype(np.int32),
        size_bytes=size,
        stream=stream.astype(np.int32),
        pool=pool.astype(np.int32),
        event=when,
    )
    own = np.array([burst.first for burst in bursts if burst not in explicit], np.int64)
    return Derivation(
        program=program,
        item_of_life=item_of[: len(lives)].astype(np.int32),
        streams=streams,
        pool_of=pool_of,
        releases=own,
        releases_are_guessed=len(own) > 0 and room.retries is None and room.high_bytes is None,
        empty_caches=len(explicit),
        unseen_empty_caches=_unseen_empty_caches(trace, len(explicit) + len(unaffected)),
        failed=failed,
        ended_by_failure=bool(died),
        room_low_bytes=room.low_bytes,
        room_high_bytes=room.high_bytes,
        notes=_notes(len(own), len(failed), bool(died)),
    )


def initial_of(trace: Trace) -> InitialState:
    """Return the initial layout for the simulator, for a replay under the recorded settings."""
    derivation, at = derivation_of(trace), trace.beginning
    segments, blocks = at.segments, at.blocks
    there = np.flatnonzero(trace.lives.alloc_event < 0)  # by address
    item = np.full(len(blocks), -1, np.int64)
    found = np.searchsorted(blocks.address, trace.lives.address[there])
    # in a damaged history an event may free a block that never existed
    real = np.append(blocks.address, -1)[found] == trace.lives.address[there]
    item[found[real]] = derivation.item_of_life[there][real]
    handles = {int(handle): number for number, handle in enumerate(derivation.streams)}
    return InitialState(
        segment_address=segments.address,
        segment_size_bytes=segments.size_bytes,
        segment_stream=np.array([handles[int(handle)] for handle in segments.stream], np.int64),
        segment_pool=derivation.pool_of[np.maximum(segments.pool, 0)],
        segment_large=segments.large.astype(np.int64),
        segment_expandable=segments.expandable.astype(np.int64),
        segment_age=np.arange(len(segments), dtype=np.int64),
        block_segment=blocks.segment.astype(np.int64),
        block_address=blocks.address,
        block_size_bytes=blocks.size_bytes,
        block_requested_bytes=blocks.requested_bytes,
        block_state=blocks.state.astype(np.int64),
        block_item=item,
    )


def _rows(
    event: IntArray, op: int, life: IntArray, size: IntArray | None = None,
    stream: IntArray | None = None, pool: IntArray | None = None, within: npt.NDArray[np.generic] | None = None,
) -> tuple[npt.NDArray[np.generic], ...]:  # fmt: skip
    zeros = np.zeros(len(event), np.int64)
    columns = (zeros if column is None else column for column in (size, stream, pool))
    return (event, zeros if within is None else within, np.full(len(event), op), life, *columns)


# ---- who returned the memory? ----


@dataclass(frozen=True)
class _Burst:
    """Segments that were returned in a row."""

    first: int
    last: int
    reserved_before_bytes: int


@dataclass(frozen=True)
class _Room:
    low_bytes: int
    high_bytes: int | None
    known: bool
    """True if the device or the limit proves the reason, not only the history."""
    retries: int | None
    """Number of retries by the allocator's own counters."""


def _room(trace: Trace) -> _Room:
    reserved = reserved_after(trace)
    low = int(reserved.max())
    known = [trace.limit_bytes] if trace.limit_bytes is not None else []
    if trace.device_free_bytes is not None and trace.start is not None:
        known.append(max(trace.start.reserved_bytes + trace.device_free_bytes, low))
    for event in np.flatnonzero(trace.events.action == OOM):  # its address is the device's free memory
        # If the device had more free memory than that, the program had a limit of its own.
        address, asked = int(trace.events.address[event]), _asked_of_device(trace, int(event))
        free = min(address, asked - 1) if address >= 0 else asked - 1
        known.append(max(int(reserved[event]) + free, low))
    retries = None
    if trace.start is not None and "num_alloc_retries" in trace.start.counters and trace.end.counters:
        retries = trace.end.counters.get("num_alloc_retries", 0) - trace.start.counters["num_alloc_retries"]
    return _Room(low, min(known, default=None), bool(known), retries)


def _asked_of_device(trace: Trace, event: int) -> int:
    """Return the most that a failed request would have reserved."""
    size, settings = int(trace.events.size_bytes[event]), trace.settings_at(event)
    large = settings.large_segment_bytes
    if size <= SMALL_BYTES:
        return GRANULE
    if settings.expandable_segments:
        return -(-size // large) * large
    return large if size < OWN_SEGMENT else -(-size // GRANULE) * GRANULE


def _bursts(trace: Trace) -> list[_Burst]:
    returned = np.flatnonzero(np.isin(trace.events.action, (SEGMENT_FREE, SEGMENT_UNMAP)))
    if not len(returned):
        return []
    reserved = reserved_after(trace)
    cuts = np.flatnonzero(np.diff(returned) > 1)
    first, last = returned[np.append(0, cuts + 1)], returned[np.append(cuts, len(returned) - 1)]
    return [_Burst(int(low), int(high), int(reserved[low])) for low, high in zip(first, last, strict=True)]


def _own(trace: Trace, burst: _Burst, room: _Room) -> bool:
    """Return True if the allocator returned these segments to make room. Then its next action is a new segment or a failure."""
    events = trace.events
    following = events.action[burst.last + 1 : burst.last + 64]
    following = following[following != SNAPSHOT]
    if not len(following) or following[0] not in (SEGMENT_ALLOC, SEGMENT_MAP, OOM):
        return False
    if following[0] == OOM:
        return True
    settings = trace.settings_at(burst.first)
    if room.retries == 0 and not settings.garbage_collection_threshold:
        return False
    after = np.flatnonzero(events.action[burst.last + 1 :] == ALLOCATED)[:1]
    if not len(after):
        return False
    asked = burst.last + 1 + int(after[0])
    need = int(rounded(int(events.size_bytes[asked]), np.array(settings.divisions, np.int64)))
    # The allocator does not return a segment that would have served the request, so the program returned it.
    size = events.size_bytes[burst.first : burst.last + 1]
    fits = (events.stream[burst.first : burst.last + 1] == events.stream[asked]) & (size >= need)
    fits &= (size > SMALL_SEGMENT_BYTES) == (need > SMALL_BYTES)
    fits &= events.pool[burst.first : burst.last + 1] == events.pool[asked]
    if need < settings.max_split_bytes:
        fits &= size < settings.max_split_bytes
    else:
        fits &= size < need + settings.max_non_split_rounding_bytes
    if fits.any():
        return False
    if settings.garbage_collection_threshold and trace.limit_bytes is not None:
        return burst.reserved_before_bytes > settings.garbage_collection_threshold * trace.limit_bytes
    new = int(events.size_bytes[burst.last + 1])
    return burst.reserved_before_bytes + new > (room.low_bytes if room.high_bytes is None else room.high_bytes)


def _behind_calls(trace: Trace) -> list[int]:
    """Return the first event after each recorded call of empty_cache() that can belong to it.

    The call first waits for other streams, so completed frees are skipped.
    """
    other = np.flatnonzero(trace.events.action != FREED)
    following: list[int] = np.append(other, len(trace.events))[np.searchsorted(other, trace.emptied)].tolist()
    return following


def _unseen_empty_caches(trace: Trace, seen: int) -> int | None:
    """Return the calls that waited for all streams, minus retries, minus calls whose effect is in the history."""
    counters = [layout.counters for layout in (trace.start, trace.end) if layout is not None]
    if len(counters) < 2 or not all("num_sync_all_streams" in one for one in counters):
        return None
    synced, retried = (
        counters[1][name] - counters[0].get(name, 0) for name in ("num_sync_all_streams", "num_alloc_retries")
    )
    return max(0, synced - retried - seen)


def _notes(releases: int, failed: int, died: bool) -> list[str]:
    notes = []
    if releases:
        notes.append(
            f"The allocator returned memory to make room ({times(releases)}). What came next distinguishes this "
            "from empty_cache()."
        )
    if failed:
        if failed == 1:
            end = "as retained to the end" if died else "as freed at once, since the training went on"
            words = f"A request failed in the recorded run. It is replayed {end}, with its rounded size."
        else:
            end = "the last one as retained to the end" if died else "as freed at once, since the training went on"
            words = f"{failed:,} requests failed in the recorded run. They are replayed {end}, with their rounded size."
        notes.append(words)
    return notes


__all__ = ["Derivation", "Layout", "derivation_of", "initial_of", "program_of"]
