"""What a history does not hold, in words: what a reader should know before he trusts its totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramscope_server.analysis.quantities import amount

if TYPE_CHECKING:
    from vramscope_server.analysis.history.trace import Trace


def told_of_gaps(trace: Trace) -> Iterator[str]:
    """Nothing where the history begins with the first allocation, and each of them ends or is there at the end."""
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
