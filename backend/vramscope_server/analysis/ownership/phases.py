"""Phase intervals: consecutive events of one phase and step, and the interval of each allocation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.trace import Trace


class PhaseIntervals(NamedTuple):
    """Phase intervals of a trace with events."""

    of_event: IntArray
    """Interval number of each event, rising."""
    phase: npt.NDArray[np.int8]
    """Phase of each interval; -1 if unknown."""
    born: IntArray
    """Interval of each allocation; -1 if before the first event."""
    outlives: npt.NDArray[np.bool_]
    """Whether each allocation exists at the end of its interval."""
    age: IntArray
    """Age of each allocation in optimizer steps, within the recording."""


def phase_intervals_of(trace: Trace) -> PhaseIntervals:
    """Phase intervals of a trace. A new one begins when the step or phase changes. O(events + lives)."""
    events, lives = trace.events, trace.lives
    changes = np.zeros(len(events), np.bool_)
    changes[1:] = (np.diff(events.phase) != 0) | (np.diff(events.step) != 0)
    of_event = np.cumsum(changes, dtype=np.int64)
    first = np.flatnonzero(np.concatenate([[True], changes[1:]]))
    last = len(events) - 1
    made, gone = np.maximum(lives.alloc_event, 0), np.clip(lives.free_requested_event, 0, last)
    known = lives.alloc_event >= 0
    ends = lives.free_requested_event <= last
    born = np.where(known, of_event[made], -1)
    step = events.step.astype(np.int64)
    return PhaseIntervals(
        of_event=of_event,
        phase=events.phase[first],
        born=born,
        outlives=known & (~ends | (of_event[gone] != born)),
        age=step[gone] - step[made],
    )
