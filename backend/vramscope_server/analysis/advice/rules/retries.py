"""Memory is given back and taken anew within steps: cudaMalloc fails, the cache is emptied, everything waits.

Condition: a request that the cache could not serve made the allocator give segments back to the device and take others, in the
peak's step or in a later one of the window. (The first steps of a training fill the cache; that is no retry.)
Arithmetic: the wall clock from the first segment given back to the segment taken, summed over these retries. What comes before
the first one (the cudaMalloc that failed, the wait for the device) is not in the history: the time is a lower bound.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.trace.types import Events
from vramscope_server.analysis.units import duration, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"
GIVEN: Final = (ACTIONS.index("segment_free"), ACTIONS.index("segment_unmap"))
TAKEN: Final = (ACTIONS.index("segment_alloc"), ACTIONS.index("segment_map"))
WORTH_FRACTION: Final = 0.01
"""of the steps' time: less is not worth a sentence"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where nothing was given back for a request, or it took next to no time."""
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
            f"At least {percent(share)} of the recorded time ({duration(seconds)} a step) went into giving memory back to the "
            f"device and taking it anew: {retries} requests found the device full while the cache held pieces of the wrong size. "
            "Less fragmentation (expandable_segments:True), or a smaller batch, makes that stop."
        ),
        saves_bytes=None,
        seconds=seconds,
        evidence={"retries": retries, "lost_ns": lost_ns, "span_ns": span_ns, "steps": steps},
        source=SOURCE,
    )


def retries_in(events: Events) -> tuple[int, int]:
    """(requests for which segments were given back, the nanoseconds from the first of them to the one that was taken)."""
    given = np.isin(events.action, GIVEN)
    begins = np.flatnonzero(given & ~np.r_[False, given[:-1]])
    ends = np.flatnonzero(given & ~np.r_[given[1:], False]) + 1
    inside = ends < len(given)
    begins, ends = begins[inside], ends[inside]
    if not len(begins):
        return 0, 0
    largest = np.maximum.reduceat(np.where(given, events.size_bytes, 0), begins)
    # One that would have served the request itself was given back by empty_cache(), not for this request.
    needed = np.isin(events.action[ends], TAKEN) & (events.size_bytes[ends] > largest)
    return int(needed.sum()), int((events.time_ns[ends] - events.time_ns[begins])[needed].sum())
