"""Where reserved memory is, moment by moment: reserved = requested + rounding + usable + stranded, to the byte.

requested   asked for, in blocks that tensors own or other streams still use (PyTorch: requested_bytes)
rounding    what these blocks have beyond that
usable      free, and of use to this run
stranded    free, and of no use to it: in pieces too small for what it asks, or in a heap that it does not ask

A free piece is as good as the requests that it can serve. Each piece is stranded by the share of its heap's demand (bytes
asked for in the window, by rounded size) that does not fit into it; a piece at the end of an expandable segment grows, and
fits all. So stranded is the mean, over what the run asks for, of the free bytes that a request cannot use. The idea is the
unusable free space index of Gorman and Whitcroft (2005), weighted by the run's own requests.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope.window import ACTIONS
from vramscope_server.analysis.fragmentation import pieces
from vramscope_server.analysis.fragmentation.demand import demand_of, rounded_sizes
from vramscope_server.analysis.fragmentation.pieces import Moves, Parts, Rules
from vramscope_server.analysis.history.block_sizes import SMALL_BYTES

if TYPE_CHECKING:
    from vramscope_server.analysis.history.trace import Trace

Whole = npt.NDArray[np.int64]
Codes = npt.NDArray[np.signedinteger]

_OOM: Final = ACTIONS.index("oom")


class Strip(NamedTuple):
    """The parts at some moments of a window; arrays of one length, in bytes."""

    event: Whole
    """the moment is after this event; -1: at the start"""
    time_ns: Whole
    step: Whole
    phase: Whole
    requested: Whole
    rounding: Whole
    usable: Whole
    stranded: Whole
    peak: int
    """position of the moment at which most was reserved, and of these most in use"""
    ooms: list[int]
    """positions of out-of-memory errors"""
    misfits: int
    """events that fit nowhere, for the history is not complete: with any, the parts are not exact"""


def strip(trace: Trace, points: int = 1000) -> Strip:
    """At most ``points`` moments and the errors beside: of each stretch of the window the one with most in use.

    Cost: about 1 µs and 200 bytes an event.
    """
    parts = parts_of(trace)
    count = len(parts.requested)
    in_use = parts.requested + parts.rounding
    reserved = in_use + parts.usable + parts.stranded
    top = np.flatnonzero(reserved == reserved.max())
    peak = int(top[in_use[top].argmax()])
    ooms = np.flatnonzero(trace.events.action == _OOM) + 1
    edges = np.linspace(0, count, min(points, count) + 1).astype(np.int64)
    highest = [start + int(in_use[start:end].argmax()) for start, end in itertools.pairwise(edges)]
    chosen = np.unique(np.array([0, *highest, peak, count - 1, *ooms.tolist()], np.int64))
    return Strip(
        event=chosen - 1,
        time_ns=_of_events(trace.events.time_ns, chosen),
        step=_of_events(trace.events.step, chosen),
        phase=_of_events(trace.events.phase, chosen),
        requested=parts.requested[chosen],
        rounding=parts.rounding[chosen],
        usable=parts.usable[chosen],
        stranded=parts.stranded[chosen],
        peak=int(np.searchsorted(chosen, peak)),
        ooms=np.searchsorted(chosen, ooms).tolist(),
        misfits=parts.misfits,
    )


def parts_of(trace: Trace) -> Parts:
    """The parts at the start (position 0) and after each event, in bytes."""
    lives, segments, count = trace.lives, trace.segment_lives, len(trace.events)
    settings, _ = trace.parsed_settings
    asked = rounded_sizes(lives.requested_bytes, np.array(settings.divisions, np.int64))
    heaps, heap = np.unique(
        np.concatenate(
            [
                np.stack([lives.pool, lives.stream, asked > SMALL_BYTES]),
                np.stack([segments.pool, segments.stream, segments.large]),
            ],
            axis=1,
        ),
        axis=1,
        return_inverse=True,
    )
    of_life, of_segment = np.split(heap.reshape(-1), [len(lives)])
    fresh = lives.alloc_event >= 0
    demand = demand_of(of_life[fresh], asked[fresh], heaps.shape[1])
    expandable = segments.expandable == 1
    took, gave = lives.alloc_event < count, lives.completed_event < count
    went = segments.died_event < count
    rows = [
        _rows(pieces.ADD_SEGMENT, segments.born_event, segments, of_segment, ~expandable),
        _rows(pieces.MAP, segments.born_event, segments, of_segment, expandable),
        _rows(pieces.TAKE, lives.alloc_event, lives, of_life, took),
        _rows(pieces.GIVE, lives.completed_event, lives, of_life, gave),
        _rows(pieces.REMOVE_SEGMENT, segments.died_event, segments, of_segment, went & ~expandable),
        _rows(pieces.UNMAP, segments.died_event, segments, of_segment, went & expandable),
    ]
    # (at the beginning all have the event -1: what is mapped comes first, then what is used)
    joined = np.concatenate(rows, axis=1)
    joined = joined[:, np.argsort(joined[0], kind="stable")]
    event, kind, address, size, requested, move_heap, item = joined
    moves = Moves(kind.astype(np.uint8), address, size, requested, move_heap, item)
    parts = pieces.walk(moves, Rules(demand, settings.max_split_bytes, settings.max_non_split_rounding_bytes))
    last = np.searchsorted(event, np.arange(-1, count), side="right") - 1
    at = np.maximum(last, 0)
    if not len(event):
        nothing = np.zeros(count + 1, np.int64)
        return Parts(nothing, nothing, nothing, nothing, parts.misfits)
    requested, rounding, usable, stranded = (np.where(last >= 0, column[at], 0) for column in parts[:4])
    return Parts(requested, rounding, usable, stranded, parts.misfits)


def _rows(kind: int, event: Whole, of: Any, heap: Whole, which: npt.NDArray[np.bool_]) -> Whole:
    """(event, kind, address, size, requested, heap, item) of some lives."""
    rows = np.flatnonzero(which)
    requested = of.requested_bytes[rows] if hasattr(of, "requested_bytes") else np.zeros(len(rows), np.int64)
    kinds = np.full(len(rows), kind)
    return np.stack([event[rows], kinds, of.address[rows], of.size_bytes[rows], requested, heap[rows], rows])


def _of_events(column: Codes, chosen: Whole) -> Whole:
    """Of the event before each moment; of the start, what the first event says."""
    if not len(column):
        return np.full(len(chosen), -1, np.int64)
    return column[np.maximum(chosen - 1, 0)].astype(np.int64)
