"""Curve of a trace: what was allocated after each event, and which allocation each change belongs to.

Allocated is what PyTorch calls so: blocks that the program holds, rounding included, from the event of the allocation to the
one that frees it. A *moment* is the time after an event; -1 is before the first, so that a trace of n events has the
moments -1 to n-1. A window ``first, end`` means the moments from ``first`` up to, and not including, ``end``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.numba_compile import entry
from vramscope_server.analysis.trace.trace import reserved_after

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

Rows = npt.NDArray[np.int32]
BEFORE: Final = -1
"""Moment before the first event."""
NEARLY: Final = 0.95
"""Fraction of the peak: among moments at least this high, one with more information is preferred."""


@dataclass(frozen=True, eq=False)
class AllocationCurve:
    """Changes in the order of events; :func:`allocation_curve` makes it."""

    event: IntArray
    row: Rows
    """Rows of trace.lives."""
    change_bytes: IntArray
    """Size of an allocation; minus the size at its end."""
    there: IntArray
    """Rows that were allocated before the first event."""
    there_bytes: IntArray
    allocated: IntArray
    """Allocated bytes after each event; element 0 is before the first event."""
    reserved: IntArray
    """Reserved bytes after each event; element 0 is before the first event."""

    @property
    def end(self) -> int:
        """One past the last moment."""
        return len(self.allocated) - 1

    def peak(self, first: int, end: int) -> int:
        """The moment of a window at which most was allocated; of several that are alike the last, of which most is known: a
        training repeats itself, and stacks and modules come late in what the agent records."""
        return end - 1 - int(self.allocated[first + 1 : end + 1][::-1].argmax())

    def moments(self, first: int, end: int, points: int) -> IntArray:
        """At most ``points`` moments of a window: of each stretch of equal length the highest, and the two ends beside."""
        edges = np.linspace(first + 1, end + 1, min(points, end - first) + 1).astype(np.int64)
        chosen = np.empty(len(edges) - 1, np.int64)
        _highest(self.allocated, edges, chosen)
        return np.unique(np.concatenate([[first], chosen - 1, [end - 1]]))


def allocation_curve(trace: Trace) -> AllocationCurve:
    """Some 30 ns an event, and 40 bytes."""
    lives, count = trace.lives, len(trace.events)
    there = np.flatnonzero((lives.alloc_event < 0) & (lives.free_requested_event > BEFORE))
    there_bytes = lives.size_bytes[there]
    event, row, change, allocated = _changes(
        lives.alloc_event, lives.free_requested_event, lives.size_bytes, count, int(there_bytes.sum())
    )
    return AllocationCurve(event, row, change, there, there_bytes, allocated, reserved_after(trace))


def stacks_from(trace: Trace) -> int | None:
    """The first event with a stack; None: there is none. The agent records stacks in a part of its window only."""
    found = np.flatnonzero(trace.events.stack >= 0)
    return int(found[0]) if len(found) else None


def shown_first(curve: AllocationCurve, stacks: int | None) -> int:
    """Where to look first: the peak, or a moment nearly as high from which on stacks were recorded."""
    peak = curve.peak(BEFORE, curve.end)
    if stacks is None or peak >= stacks:
        return peak
    later = curve.peak(stacks, curve.end)
    return later if curve.allocated[later + 1] >= NEARLY * curve.allocated[peak + 1] else peak


def alive(trace: Trace, moment: int) -> IntArray:
    """Rows of trace.lives that are allocated at a moment, in the order of their birth."""
    lives = trace.lives
    rows: IntArray = np.flatnonzero((lives.alloc_event <= moment) & (lives.free_requested_event > moment))
    return rows


class EventMoment(TypedDict):
    """The point after an event; None is unknown."""

    event: int
    step: int | None
    phase: str | None
    module: str | None
    seconds: float | None
    """Time since the first event."""


def describe_event(trace: Trace, moment: int) -> EventMoment:
    """A moment in words and numbers; None is unknown."""
    events = trace.events
    if not len(events):
        return {"event": moment, "step": None, "phase": None, "module": None, "seconds": None}
    at = max(moment, 0)
    step, phase, module = int(events.step[at]), int(events.phase[at]), int(events.module[at])
    zero, time = int(events.time_ns[0]), int(events.time_ns[at])
    return {
        "event": moment,
        "step": step if step >= 0 else None,
        "phase": PHASES[phase] if phase >= 0 else None,
        "module": trace.modules[module] if module >= 0 else None,
        "seconds": (time - zero) / 1e9 if zero > 0 and time > 0 else None,
    }


@entry
def _highest(values: Any, edges: Any, chosen: Any) -> None:
    """The position of the highest value between each two edges, the last of several."""
    for part in range(len(edges) - 1):
        best = edges[part]
        for at in range(edges[part], edges[part + 1]):
            if values[at] >= values[best]:
                best = at
        chosen[part] = best


@entry
def _changes(alloc: Any, requested: Any, size: Any, count: int, before_bytes: int) -> Any:
    """(event, row, bytes) of each begin and end, in the order of events and begins first; what is allocated after each event."""
    at = np.zeros(count + 1, np.int64)
    for life in range(len(alloc)):
        if requested[life] > alloc[life]:
            if alloc[life] >= 0:
                at[alloc[life] + 1] += 1
            if requested[life] < count:
                at[requested[life] + 1] += 1
    for moment in range(count):
        at[moment + 1] += at[moment]
    total = at[count]
    event, row, change = np.empty(total, np.int64), np.empty(total, np.int32), np.empty(total, np.int64)
    for ends in (False, True):
        for life in range(len(alloc)):
            moment = requested[life] if ends else alloc[life]
            if requested[life] > alloc[life] and 0 <= moment < count:
                place = at[moment]
                at[moment] += 1
                event[place], row[place], change[place] = moment, life, -size[life] if ends else size[life]
    allocated = np.empty(count + 1, np.int64)
    allocated[0] = before_bytes
    place = 0
    for moment in range(count):
        now = allocated[moment]
        while place < total and event[place] == moment:
            now += change[place]
            place += 1
        allocated[moment + 1] = now
    return event, row, change, allocated
