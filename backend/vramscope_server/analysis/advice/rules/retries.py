"""Advice for allocation retries within steps: cudaMalloc fails, the cache is emptied, and the device waits.

Condition: for a request that the cache could not serve, the allocator returned segments to the device and allocated others,
in the peak's step or a later one. (The first steps of a training fill the cache; these are no retries.)
Calculation: wall time from the first returned segment to the new segment, summed over all retries. The failed cudaMalloc and
the wait for the device before it are not recorded, so the time is a lower bound.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.number_format import duration, percent
from vramscope_server.analysis.trace.types import Events

SOURCE: Final = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"
RETURNED: Final = (ACTIONS.index("segment_free"), ACTIONS.index("segment_unmap"))
OBTAINED: Final = (ACTIONS.index("segment_alloc"), ACTIONS.index("segment_map"))
WORTH_FRACTION: Final = 0.01
"""Minimum share of the steps' time."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if there were no retries, or they took almost no time."""
    events = facts.trace.events
    steps = int(events.step[-1]) - int(events.step[0]) + 1
    span_ns = int(events.time_ns[-1]) - int(events.time_ns[0])
    retries, lost_ns = retries_in(events)
    if not retries or span_ns <= 0 or lost_ns < WORTH_FRACTION * span_ns:
        return None
    share, seconds = lost_ns / span_ns, lost_ns / 1e9 / steps
    return Advice(
        rule="retries",
        sentence=(
            f"At least {percent(share)} of the recorded time ({duration(seconds)} per step) was spent on returning memory to the "
            f"device and allocating it again: {retries} requests found the device full while cached blocks had the wrong size. "
            "Less fragmentation or a smaller batch avoids this."
        ),
        saves_bytes=None,
        seconds=seconds,
        evidence={"retries": retries, "lost_ns": lost_ns, "span_ns": span_ns, "steps": steps},
        source=SOURCE,
    )


def retries_in(events: Events) -> tuple[int, int]:
    """Number of retries, and the nanoseconds from the first returned segment of each to the new segment."""
    returned = np.isin(events.action, RETURNED)
    begins = np.flatnonzero(returned & ~np.r_[False, returned[:-1]])
    ends = np.flatnonzero(returned & ~np.r_[returned[1:], False]) + 1
    inside = ends < len(returned)
    begins, ends = begins[inside], ends[inside]
    if not len(begins):
        return 0, 0
    largest = np.maximum.reduceat(np.where(returned, events.size_bytes, 0), begins)
    # A returned segment that could have served the request was returned by empty_cache(), not for this request.
    needed = np.isin(events.action[ends], OBTAINED) & (events.size_bytes[ends] > largest)
    return int(needed.sum()), int((events.time_ns[ends] - events.time_ns[begins])[needed].sum())
