"""PhaseIntervals: one stay in a phase. In which one each allocation was made, and whether it outlived it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.trace import Trace

Whole = npt.NDArray[np.int64]


class PhaseIntervals(NamedTuple):
    """Of a trace that has events."""

    of_event: Whole
    """the number of each event's interval, rising"""
    phase: npt.NDArray[np.int8]
    """of each interval; -1: unknown"""
    born: Whole
    """the interval that each life was made in; -1: before the first event"""
    outlives: npt.NDArray[np.bool_]
    """lives that were there when the interval that made them ended"""
    age: Whole
    """of each life, in optimizer steps; as far as it was seen"""


def phase_intervals_of(trace: Trace) -> PhaseIntervals:
    """A new interval begins where step or phase changes. O(events + lives)."""
    events, lives = trace.events, trace.lives
    changes = np.zeros(len(events), np.bool_)
    changes[1:] = (np.diff(events.phase) != 0) | (np.diff(events.step) != 0)
    of_event = np.cumsum(changes, dtype=np.int64)
    first = np.flatnonzero(np.concatenate([[True], changes[1:]]))
    last = len(events) - 1
    made, gone = np.maximum(lives.alloc_event, 0), np.clip(lives.requested_event, 0, last)
    known = lives.alloc_event >= 0
    ends = lives.requested_event <= last
    born = np.where(known, of_event[made], -1)
    step = events.step.astype(np.int64)
    return PhaseIntervals(
        of_event=of_event,
        phase=events.phase[first],
        born=born,
        outlives=known & (~ends | (of_event[gone] != born)),
        age=step[gone] - step[made],
    )
