"""Curve of a trace: allocated bytes after each event, and the allocation that each change belongs to.

*Allocated* has PyTorch's meaning: blocks in use by the program, rounding included, from their allocation to their free. A
*moment* is the time after an event. Moment -1 is before the first event, so a trace of n events has the moments -1 to n-1. A
window ``first, end`` has the moments from ``first`` to below ``end``.
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
    """Changes of the allocated bytes, in the order of events."""

    event: IntArray
    row: Rows
    """Rows of trace.lives."""
    change_bytes: IntArray
    """Size of the allocation at its start, and minus its size at its end."""
    there: IntArray
    """Rows of trace.lives that were allocated before the first event."""
    there_bytes: IntArray
    allocated: IntArray
    """Allocated bytes after each event; element 0 is before the first event."""
    reserved: IntArray
    """Reserved bytes after each event; element 0 is before the first event."""

    @property
    def end(self) -> int:
        """The last moment plus one."""
        return len(self.allocated) - 1

    def peak(self, first: int, end: int) -> int:
        """Return the moment of a window with the most allocated bytes; of several equal ones the last.

        Steps of a training are alike, and the agent records stacks and modules only in the later ones.
        """
        return end - 1 - int(self.allocated[first + 1 : end + 1][::-1].argmax())

    def moments(self, first: int, end: int, points: int) -> IntArray:
        """Return the highest moment of each of at most ``points`` equal parts of a window, and its first and last moment."""
        edges = np.linspace(first + 1, end + 1, min(points, end - first) + 1).astype(np.int64)
        chosen = np.empty(len(edges) - 1, np.int64)
        _highest(self.allocated, edges, chosen)
        return np.unique(np.concatenate([[first], chosen - 1, [end - 1]]))


def allocation_curve(trace: Trace) -> AllocationCurve:
    """Compute the curve. Takes about 30 ns and 40 bytes for each event."""
    lives, count = trace.lives, len(trace.events)
    there = np.flatnonzero((lives.alloc_event < 0) & (lives.free_requested_event > BEFORE))
    there_bytes = lives.size_bytes[there]
    event, row, change, allocated = _changes(
        lives.alloc_event, lives.free_requested_event, lives.size_bytes, count, int(there_bytes.sum())
    )
    return AllocationCurve(event, row, change, there, there_bytes, allocated, reserved_after(trace))


def stacks_from(trace: Trace) -> int | None:
    """Return the first event with a stack; None without one. The agent records stacks in a part of a window only."""
    found = np.flatnonzero(trace.events.stack >= 0)
    return int(found[0]) if len(found) else None


def shown_first(curve: AllocationCurve, stacks: int | None) -> int:
    """Return the moment to show first: the peak, or an almost equal peak in the part with stacks. ``stacks``: its start."""
    peak = curve.peak(BEFORE, curve.end)
    if stacks is None or peak >= stacks:
        return peak
    later = curve.peak(stacks, curve.end)
    return later if curve.allocated[later + 1] >= NEARLY * curve.allocated[peak + 1] else peak


def alive(trace: Trace, moment: int) -> IntArray:
    """Return the rows of trace.lives that are allocated at a moment, in the order of their allocation."""
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
    """Return step, phase, module and time of a moment. None is unknown."""
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
    """Find the position of the highest value between each two edges; of several equal ones the last."""
    for part in range(len(edges) - 1):
        best = edges[part]
        for at in range(edges[part], edges[part + 1]):
            if values[at] >= values[best]:
                best = at
        chosen[part] = best


@entry
def _changes(alloc: Any, requested: Any, size: Any, count: int, before_bytes: int) -> Any:
    """Return (event, row, bytes) of each allocation and free, and the allocated bytes after each event.

    Changes are in the order of events. At one event allocations come before frees.
    """
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
