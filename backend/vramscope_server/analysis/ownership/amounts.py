"""Allocated bytes over a trace, and their peak. Memory counts from its allocation until the program frees it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.trace import Trace

ALIKE_FRACTION: Final = 1 / 256
"""Relative difference of peaks within which steps count as equal. A large block may include up to 1 MiB of remainder."""


def allocated_after(trace: Trace, lives: npt.NDArray[np.bool_] | None = None) -> IntArray:
    """Allocated bytes (rounding included) after each event; element 0 is before the first event.

    lives   which allocations count; None: all
    """
    of, count = trace.lives, len(trace.events)
    size = of.size_bytes if lives is None else np.where(lives, of.size_bytes, 0)
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, of.alloc_event + 1, size)
    np.subtract.at(change, of.free_requested_event + 1, size)
    return np.cumsum(change[: count + 1])


def allocated_at(trace: Trace, event: int) -> IntArray:
    """Positions of the allocations that exist after an event."""
    lives = trace.lives
    return np.flatnonzero((lives.alloc_event <= event) & (lives.free_requested_event > event))


def peak_event(trace: Trace) -> int:
    """Event with the highest allocated bytes. Of equal ones the last, because stacks and modules come late in a window."""
    allocated = allocated_after(trace)
    return len(allocated) - 2 - int(np.argmax(allocated[::-1]))


def known_peak_event(trace: Trace) -> int:
    """Event with the highest allocated bytes in a step with modules (or stacks, if there are no modules).

    If no such step is as high as the highest one, the exact peak.
    """
    events, exact = trace.events, peak_event(trace)
    known = events.module >= 0 if (events.module >= 0).any() else events.stack >= 0
    if exact < 0 or not known.any() or known[events.step == events.step[exact]].any():
        return exact
    allocated = allocated_after(trace)[1:]
    equal = allocated >= (1 - ALIKE_FRACTION) * allocated[exact]
    steps = np.intersect1d(events.step[known], events.step[equal])
    if not len(steps):
        return exact
    of_step = np.flatnonzero(events.step == steps[-1])
    return int(of_step[len(of_step) - 1 - np.argmax(allocated[of_step][::-1])])
