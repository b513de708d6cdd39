"""Breakdown of reserved memory at each event: reserved = requested + rounding + usable + unusable, to the byte.

requested   requested bytes of blocks that tensors own or other streams still use (PyTorch: requested_bytes)
rounding    allocated minus requested bytes of these blocks
usable      free bytes that this run can use
unusable    free bytes that this run cannot use: in blocks smaller than its requests, or in a heap without requests

The value of a free block depends on the requests that it can serve. The unusable share of a block is the share of its heap's
requested bytes in the window, by rounded size, that does not fit into it. A block at the end of an expandable segment can
grow and fits everything, unless expandable segments are off: then they serve nothing. If settings change within a window, all
free blocks are evaluated again. So unusable is the mean, over the run's requests, of the free bytes that a request cannot use.
The idea is the unusable free space index of Gorman and Whitcroft (2005), weighted by the run's own requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.fragmentation import usable as pieces
from vramscope_server.analysis.fragmentation.request_sizes import RequestSizes, request_sizes_of
from vramscope_server.analysis.fragmentation.usable import Moves, Parts, ReuseRules, Spans
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.trace.block_sizes import SMALL_BYTES
from vramscope_server.analysis.trace.counting_sort import in_order, numbered
from vramscope_server.analysis.trace.types import SEGMENT_MAP

if TYPE_CHECKING:
    from vramscope_server.analysis.simulator.settings import AllocatorSettings
    from vramscope_server.analysis.simulator.timed_settings import ReportedSettings
    from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.integer]

_OOM: Final = ACTIONS.index("oom")


class Breakdown(NamedTuple):
    """Parts of reserved memory at some events of a window, in arrays of equal length."""

    event: IntArray
    """The values are those after this event; -1 is the start."""
    time_ns: IntArray
    step: IntArray
    phase: IntArray
    requested: IntArray
    rounding: IntArray
    usable: IntArray
    unusable: IntArray
    peak: int
    """Position of the highest reserved bytes; of these, the highest allocated bytes."""
    ooms: list[int]
    """Positions of out-of-memory errors."""
    misfits: int
    """Number of events that contradict the state, because events are missing. If not 0, the parts are not exact."""

    @property
    def in_use(self) -> IntArray:
        """Allocated bytes."""
        return self.requested + self.rounding

    @property
    def reserved(self) -> IntArray:
        """Bytes that PyTorch took from the device."""
        return self.in_use + self.usable + self.unusable


def breakdown_of(
    trace: Trace, points: int = 1000, *, first: int = -1, end: int | None = None, parts: Parts | None = None
) -> Breakdown:
    """Breakdown at up to ``points`` events of a window, and at its ends and out-of-memory errors.

    Each point is the event with the highest allocated bytes of its part of the window. The window goes from event ``first``
    (-1: before the first event) to below ``end``; the default is all events. ``parts`` are those of the trace, if known.
    Without them it costs about 1 µs and 200 bytes per event.
    """
    parts = parts or parts_of(trace)
    low, high = first + 1, (len(trace.events) if end is None else end) + 1
    ooms = np.flatnonzero(trace.events.action == _OOM) + 1
    ooms = ooms[(ooms >= low) & (ooms < high)]
    edges = low + np.linspace(0, high - low, min(points, high - low) + 1).astype(np.int64)
    highest, peak = _highest(parts.requested, parts.rounding, parts.usable, parts.unusable, edges)
    chosen = np.unique(np.concatenate([highest, [low, peak, high - 1], ooms]).astype(np.int64))
    return Breakdown(
        event=chosen - 1,
        time_ns=_of_events(trace.events.time_ns, chosen),
        step=_of_events(trace.events.step, chosen),
        phase=_of_events(trace.events.phase, chosen),
        requested=parts.requested[chosen],
        rounding=parts.rounding[chosen],
        usable=parts.usable[chosen],
        unusable=parts.unusable[chosen],
        peak=int(np.searchsorted(chosen, peak)),
        ooms=np.searchsorted(chosen, ooms).tolist(),
        misfits=parts.misfits,
    )


@entry
def _highest(requested: Any, rounding: Any, usable: Any, unusable: Any, edges: Any) -> Any:
    """First event with the highest allocated bytes between each two edges, and the first with the highest reserved bytes."""
    found = np.empty(len(edges) - 1, np.int64)
    peak, peak_reserved, peak_in_use = edges[0], np.int64(-1), np.int64(-1)
    for part in range(len(edges) - 1):
        best, most = edges[part], np.int64(-1)
        for at in range(edges[part], edges[part + 1]):
            in_use = requested[at] + rounding[at]
            reserved = in_use + usable[at] + unusable[at]
            if at == edges[part] or in_use > most:
                best, most = at, in_use
            if reserved > peak_reserved or (reserved == peak_reserved and in_use > peak_in_use):
                peak, peak_reserved, peak_in_use = at, reserved, in_use
        found[part] = best
    return found, peak


def parts_of(trace: Trace) -> Parts:
    """Parts at the start (position 0) and after each event, in bytes. About 0.5 µs and 100 bytes per event."""
    lives, segments, count = trace.lives, trace.segment_lives, len(trace.events)
    rounded = trace.rounding.rounded(lives.requested_bytes, lives.alloc_event)
    heap, heaps = _heaps(
        np.concatenate([lives.pool, segments.pool]),
        np.concatenate([lives.stream, segments.stream]),
        np.concatenate([rounded > SMALL_BYTES, segments.large == 1]),
    )
    recorded = lives.alloc_event >= 0
    sizes = request_sizes_of(heap[: len(lives)][recorded], rounded[recorded], heaps)
    spans = Spans(
        np.concatenate([lives.address, segments.address]),
        np.concatenate([lives.size_bytes, segments.size_bytes]),
        np.concatenate([lives.requested_bytes, np.zeros(len(segments.address), np.int64)]),
        heap,
    )
    moves = _moves(trace, count)
    earlier, changed = None, 0
    if trace.earlier_settings is not None and trace.settings_before is not None:
        changed, settings = trace.earlier_settings
        in_force = trace.settings_before.settings_in_force
        earlier = changed, _rules(sizes, settings, in_force, trace.events.action[:changed])
    settings, _ = trace.parsed_settings
    rules = _rules(sizes, settings, trace.settings_in_force, trace.events.action[changed:])
    return pieces.walk(spans, moves, rules, count + 1, earlier=earlier)


def _rules(sizes: RequestSizes, settings: AllocatorSettings, in_force: ReportedSettings, action: Codes) -> ReuseRules:
    """Rules during these events."""
    closed = in_force.get("expandable_segments") is False and not (action == SEGMENT_MAP).any()
    return ReuseRules(sizes, settings.max_split_bytes, settings.max_non_split_rounding_bytes, closed)


def _heaps(pool: IntArray, stream: IntArray, large: npt.NDArray[np.bool_]) -> tuple[IntArray, int]:
    """Heap of each block, and the number of heaps."""
    pools, pool = numbered(pool)
    _, stream = numbered(stream)
    heaps, heap = numbered((stream * max(len(pools), 1) + pool) * 2 + large)
    return heap, len(heaps)


def _moves(trace: Trace, count: int) -> Moves:
    """Moves in the order of events. Blocks are the first spans, segments the following ones."""
    lives, segments = trace.lives, trace.segment_lives
    offset = len(lives)
    expandable, went = segments.expandable == 1, segments.died_event < count
    rows = [
        (pieces.GIVE, lives.completed_event, np.flatnonzero(lives.completed_event < count), 0),
        (pieces.REMOVE_SEGMENT, segments.died_event, np.flatnonzero(went & ~expandable), offset),
        (pieces.UNMAP, segments.died_event, np.flatnonzero(went & expandable), offset),
        (pieces.ADD_SEGMENT, segments.born_event, np.flatnonzero(~expandable), offset),
        (pieces.MAP, segments.born_event, np.flatnonzero(expandable), offset),
        (pieces.TAKE, lives.alloc_event, np.flatnonzero(lives.alloc_event < count), 0),
    ]
    rows.sort(key=lambda row: row[0])
    moment = np.concatenate([event[which] + 1 for _, event, which, _ in rows])
    order = in_order(moment, count + 1)
    kind = np.concatenate([np.full(len(which), one, np.uint8) for one, _, which, _ in rows])
    span = np.concatenate([which + first for _, _, which, first in rows])
    return Moves(kind[order], span[order], moment[order])


def _of_events(column: Codes, chosen: IntArray) -> IntArray:
    """Values of the event before each position; of the first event for the start."""
    if not len(column):
        return np.full(len(chosen), -1, np.int64)
    return column[np.maximum(chosen - 1, 0)].astype(np.int64)
