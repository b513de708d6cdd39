"""Notable events of a trace: the peak, the last growth, out-of-memory errors, and starts of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.fragmentation.breakdown import breakdown_of
from vramscope_server.analysis.fragmentation.usable import Parts
from vramscope_server.analysis.trace.trace import Trace, reserved_after


@dataclass(frozen=True)
class NotableEvents:
    """Notable events, counted from 0; -1 is before the first event."""

    peak_event: int
    """Event with the highest reserved bytes; of these, the one with the highest allocated bytes."""
    growth_event: int
    """First event with the highest reserved bytes: free memory did not serve its request."""
    peak_reserved_bytes: int
    out_of_memory_events: list[int]
    steps: list[tuple[int, int]]
    """Step and its first event, sorted, of known steps."""


def notable_events_of(trace: Trace, parts: Parts | None = None) -> NotableEvents:
    """Find notable events. About 1 µs per event, or less with ``parts`` (fragmentation.breakdown.parts_of)."""
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
