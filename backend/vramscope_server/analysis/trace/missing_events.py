"""Notes on missing events, which make totals of a trace wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.trace.types import ALLOC, SEGMENT_ALLOC, SEGMENT_MAP

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace


def missing_event_notes(trace: Trace) -> Iterator[str]:
    """Yield notes on missing events. None if the trace starts with the first allocation and each one ends or exists at the end."""
    lives = trace.lives
    before = int(lives.size_bytes[lives.alloc_event < 0].sum())
    if trace.start is None and len(trace.events) and before:  # a window has its start
        yield (
            f"{amount(before)} were allocated before the first event: recording started later, or older events were overwritten "
            "(max_entries). Peaks are those of the recorded events."
        )
    if lives.unended:
        yield (
            f"{lives.unended:,} allocations neither end nor exist at the end: their free events are missing (skip_actions drops "
            "some). They count as allocated until their addresses are used again, so allocated memory is too high."
        )
    action = trace.events.action
    ends, closes = (ended[ended < len(action)] for ended in (lives.completed_event, trace.segment_lives.died_event))
    if taken := int(np.count_nonzero(action[ends] == ALLOC)):
        yield (
            f"{taken:,} allocations were made at the address of another one that was not freed: its free event is missing, or "
            "the allocation is recorded twice. It counts as allocated until then, so allocated memory may be too high."
        )
    if made := int(np.count_nonzero(np.isin(action[closes], (SEGMENT_ALLOC, SEGMENT_MAP)))):
        yield (
            f"{made:,} segments were made at the address of another one that was not returned: its event is missing, or the "
            "segment is recorded twice. Reserved memory is wrong by the same amount."
        )
