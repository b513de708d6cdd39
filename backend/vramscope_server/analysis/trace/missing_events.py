"""What a history does not hold, in words: what a reader should know before he trusts its totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from vramscope_server.analysis.trace.types import ALLOC, SEGMENT_ALLOC, SEGMENT_MAP
from vramscope_server.analysis.units import amount

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace


def missing_event_notes(trace: Trace) -> Iterator[str]:
    """Nothing where the history begins with the first allocation, and each of them ends once or is there at the end."""
    lives = trace.lives
    before = int(lives.size_bytes[lives.alloc_event < 0].sum())
    if trace.start is None and len(trace.events) and before:  # (a window knows what there was)
        yield (
            f"The history begins with {amount(before)} in use already: it was switched on then, or older events were overwritten "
            "(max_entries). The peaks are those of the events that are here."
        )
    if lives.unended:
        yield (
            f"{lives.unended:,} allocations end nowhere in this history and are not there at its end: the events that "
            "freed them are missing (skip_actions leaves some out). Until their addresses are used again they count as held, "
            "so that what is shown as allocated is too high."
        )
    action = trace.events.action
    ends, closes = (ended[ended < len(action)] for ended in (lives.completed_event, trace.segment_lives.died_event))
    if taken := int(np.count_nonzero(action[ends] == ALLOC)):
        yield (
            f"{taken:,} allocations were made where another one was not yet freed: the events that freed it are missing, or the "
            "allocation stands twice in this history. It counts as held until then, and what is shown as allocated may be too high."
        )
    if made := int(np.count_nonzero(np.isin(action[closes], (SEGMENT_ALLOC, SEGMENT_MAP)))):
        yield (
            f"{made:,} segments were made where another one was not yet returned: the events that returned it are missing, or the "
            "segment stands twice in this history. What is shown as reserved is wrong by as much."
        )
