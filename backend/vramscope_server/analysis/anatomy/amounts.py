"""Bytes in use over a trace, and when they were highest. Allocated: from the allocation to the moment that the program lets go."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.history.trace import Trace

Whole = npt.NDArray[np.int64]


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
