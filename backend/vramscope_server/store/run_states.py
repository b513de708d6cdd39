"""States of runs: running, finished, failed, lost. Pure rules; the writer applies them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OPEN: Final = ("running", "lost")
"""States of a session that has not reported its end. Any other is the reported end, and may be a word of a newer agent."""

AGREE_NS: Final = 500_000_000
APART_NS: Final = 1_000_000_000


def run_state(sessions: Iterable[str]) -> str:
    """State of a run from the newest session of each of its ranks, in the current attempt.

    The first that applies: a session runs: running. One failed: failed, even if others fell silent, which is how a
    torchrun job ends. One is lost: lost. One ended in a state that only a newer agent knows: that state. Else finished.
    """
    states = set(sessions)
    for state in ("running", "failed", "lost"):
        if state in states:
            return state
    return min(states - {"finished"}, default="finished")


class Skew:
    """Estimate of a sender's clock minus the server's clock, from the times at which batches were sent.

    A batch that waited in a spool looks like one from a slow clock. So a difference counts when two batches that arrive
    at least a second apart agree on it; a spool is sent faster than it was written, so its batches do not agree. Waiting
    cannot imitate a clock that is ahead, so that counts at once.
    """

    __slots__ = ("_first", "skew_ns")

    def __init__(self, skew_ns: int | None = None) -> None:
        self.skew_ns = skew_ns
        self._first: tuple[int, int] | None = None

    def see(self, sent_ns: int, received_ns: int) -> None:
        """Add a batch. The largest difference counts: that batch travelled for the shortest time."""
        difference = sent_ns - received_ns
        if self._first is None:
            self._first = (received_ns, difference)
        at, before = self._first
        agrees = received_ns - at >= APART_NS and abs(difference - before) <= AGREE_NS
        if received_ns - at >= APART_NS:
            self._first = (received_ns, difference)
        if agrees or difference > AGREE_NS:
            believed = max(difference, before) if agrees else difference
            # Not the largest ever: a clock that was ahead may have been corrected.
            self.skew_ns = believed


def display_skew_ns(skew_ns: int | None) -> int:
    """Skew by which times are shifted when they are shown; 0 for one that a slow network explains."""
    return skew_ns if skew_ns is not None and abs(skew_ns) > 2_000_000_000 else 0


def add_sequence(last: int, early: list[list[int]], sequence: int) -> tuple[int, bool]:
    """Record the arrival of a batch. ``early`` has ranges beyond a gap, rising, and is changed in place.

    Returns the number up to which there is no gap, and whether the batch is new.
    """
    if sequence <= last:
        return last, False
    for position, (first, end) in enumerate(early):
        if first <= sequence <= end:
            return last, False
        if sequence < first:
            early.insert(position, [sequence, sequence])
            break
    else:
        early.append([sequence, sequence])
    merged: list[list[int]] = []
    for first, end in early:
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([first, end])
    if merged and merged[0][0] == last + 1:
        last = merged.pop(0)[1]
    early[:] = merged
    return last, True
