"""Is a run running, finished, failed or lost? Pure rules; the writer applies them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

OPEN: Final = ("running", "lost")
"""states of a session that has not told how it ended; any other is what it told, and may be a word of a newer agent"""

AGREE_NS: Final = 500_000_000
APART_NS: Final = 1_000_000_000


def run_state(sessions: Iterable[str]) -> str:
    """A run's state from the newest session of each of its ranks (of the current attempt).

    One that runs: running. Else one that failed: failed, even if others fell silent: that is how a torchrun job dies.
    Else one that is lost: lost. Else an end that only a newer agent knows, by its name. Else finished.
    """
    states = set(sessions)
    for state in ("running", "failed", "lost"):
        if state in states:
            return state
    return min(states - {"finished"}, default="finished")


class Skew:
    """Estimates by how much a sender's clock is ahead of ours, from the moments at which batches were sent.

    A batch that waited in a spool looks like one from a slow clock. So a difference is believed when two batches that
    came at least a second apart agree on it; a spool is read out faster than it was written, so its batches do not.
    A clock ahead of ours cannot be mimicked by waiting and is believed at once.
    """

    __slots__ = ("_first", "skew_ns")

    def __init__(self, skew_ns: int | None = None) -> None:
        self.skew_ns = skew_ns
        self._first: tuple[int, int] | None = None

    def see(self, sent_ns: int, received_ns: int) -> None:
        """Take in one batch. The largest difference counts: it travelled for the shortest time."""
        difference = sent_ns - received_ns
        if self._first is None:
            self._first = (received_ns, difference)
        at, before = self._first
        agrees = received_ns - at >= APART_NS and abs(difference - before) <= AGREE_NS
        if received_ns - at >= APART_NS:
            self._first = (received_ns, difference)
        if agrees or difference > AGREE_NS:
            believed = max(difference, before) if agrees else difference
            # Not the largest ever: a clock that was ahead may have been set right meanwhile.
            self.skew_ns = believed


def display_skew_ns(skew_ns: int | None) -> int:
    """By how much moments are shifted when they are shown; what a slow network explains is left alone."""
    return skew_ns if skew_ns is not None and abs(skew_ns) > 2_000_000_000 else 0


def add_sequence(last: int, early: list[list[int]], sequence: int) -> tuple[int, bool]:
    """Note that a batch arrived. ``early`` holds ranges beyond a gap, rising, and is changed in place.

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
