"""The moments of a trace worth looking at: its peak, where it last grew, where it ran out, where each step begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.fragmentation.breakdown import breakdown_of
from vramscope_server.analysis.fragmentation.usable import Parts
from vramscope_server.analysis.trace.trace import Trace, reserved_after

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NotableEvents:
    """Events are counted from 0; -1 is before the first."""

    peak_event: int
    """at which most was reserved, and of these most in use: as the strip says"""
    growth_event: int
    """at which reserved first reached its highest: what was free then did not do for the request"""
    peak_reserved_bytes: int
    out_of_memory_events: list[int]
    steps: list[tuple[int, int]]
    """(step, its first event), rising; only steps that are known"""


def notable_events_of(trace: Trace, parts: Parts | None = None) -> NotableEvents:
    """About 1 µs an event, unless its ``parts`` (fragmentation.strip.parts_of) are known already."""
    reserved = reserved_after(trace)
    growth = int(np.argmax(reserved)) - 1
    peak = breakdown_of(trace, 1, parts=parts)
    step = trace.events.step
    changes = np.flatnonzero(np.diff(step, prepend=np.int32(-1)) != 0)
    return NotableEvents(
        peak_event=int(peak.event[peak.peak]),
        growth_event=growth,
        peak_reserved_bytes=int(reserved.max()),
        out_of_memory_events=np.flatnonzero(trace.events.action == ACTIONS.index("oom")).tolist(),
        steps=[(int(step[at]), int(at)) for at in changes if step[at] >= 0],
    )
