"""Bytes in use over a trace, and when they were highest. Allocated: from the allocation to the moment that the program lets go."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.trace import Trace

Whole = npt.NDArray[np.int64]

ALIKE_FRACTION: Final = 1 / 256
"""of a peak, by which steps that are the same may differ: a large block is handed out with up to 1 MiB that is left over"""


def allocated_after(trace: Trace, lives: npt.NDArray[np.bool_] | None = None) -> Whole:
    """Allocated bytes (PyTorch's word: rounding included) after each event; element 0 is before the first.

    lives   which of the trace's lives to count; None: all
    """
    of, count = trace.lives, len(trace.events)
    size = of.size_bytes if lives is None else np.where(lives, of.size_bytes, 0)
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, of.alloc_event + 1, size)
    np.subtract.at(change, of.requested_event + 1, size)
    return np.cumsum(change[: count + 1])


def allocated_at(trace: Trace, event: int) -> Whole:
    """Positions of the lives that the program holds after an event."""
    lives = trace.lives
    return np.flatnonzero((lives.alloc_event <= event) & (lives.requested_event > event))


def peak_event(trace: Trace) -> int:
    """The event after which most was allocated; of several that are alike the last: a training repeats itself, and stacks and
    modules come late in a window."""
    allocated = allocated_after(trace)
    return len(allocated) - 2 - int(np.argmax(allocated[::-1]))


def known_peak_event(trace: Trace) -> int:
    """The same, but where the peak's step knows neither modules nor stacks and one that knows them is as high: the peak of the last
    such step."""
    events, exact = trace.events, peak_event(trace)
    known = events.module >= 0 if (events.module >= 0).any() else events.stack >= 0
    if exact < 0 or not known.any() or known[events.step == events.step[exact]].any():
        return exact
    allocated = allocated_after(trace)[1:]
    alike = allocated >= (1 - ALIKE_FRACTION) * allocated[exact]
    steps = np.intersect1d(events.step[known], events.step[alike])
    if not len(steps):
        return exact
    of_step = np.flatnonzero(events.step == steps[-1])
    return int(of_step[len(of_step) - 1 - np.argmax(allocated[of_step][::-1])])
