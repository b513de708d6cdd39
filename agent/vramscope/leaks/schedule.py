"""Schedule of scans: after fixed iterations, on suspicion, and again while reported growth may still stop.

An iteration is an optimizer step; where nothing trains, a batch of a loader or a call of a model.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from vramscope.leaks.policy import POLICY

MOST_SECONDS: Final = 3.0
"""Seconds that scans on suspicion may take in all, besides a hundredth of the run's time."""
RESCAN_SECONDS: Final = 1.0
"""Seconds beside these for scans that check reported growth: no report should stand for want of time."""
RUN_SHARE: Final = 0.01


class ScanSchedule:
    """Number of iterations, their unit, whether a scan is due, and the time that scans may take."""

    def __init__(self) -> None:
        self.number = 0
        """Iterations that have ended."""
        self.per = "step"
        """Unit of an iteration, one of series.ROUNDS."""
        self.due: set[int] = set()
        """Ids of the optimizers after whose next step a scan runs in any case."""
        self.suspicion = ""
        """Reason for a scan at the next opportunity; empty without a suspicion."""
        self.rescan_at = 0
        """Iteration of a scan that checks reported growth; 0 without any."""
        self._earlier = 0
        """Iterations of another unit: an evaluation before the training, say."""
        self._next_suspicion = POLICY.last_early_scan + 1
        self._started = time.monotonic()
        self._spent_seconds = 0.0
        self._was_due = False
        self._scan_at = POLICY.scan_at

    def count(self, per: str) -> None:
        """Change the unit of an iteration."""
        if per != self.per:
            self.per, self._earlier = per, self.number
            self._scan_at = POLICY.scan_at - POLICY.not_at_calls if per == "call" else POLICY.scan_at

    def start_steps(self) -> int:
        """Steps end iterations from now on. Returns the iterations that backwards had ended before."""
        self.count("step")
        ended, self._earlier = self.number - self._earlier, self.number
        self.due.clear()
        return ended

    def end_unseen(self, iterations: int = 1) -> None:
        """Count iterations after which no scan can follow. One that is due follows the next iteration. 0.2 µs each."""
        for _ in range(iterations):
            self.number += 1
            if 0 < self.rescan_at <= self.number:
                self.suspicion = "to see whether it still grows"
            if self.number - self._earlier in self._scan_at:
                self._was_due = True

    def end(self) -> bool:
        """Count an iteration. True if a scan follows in any case."""
        self.end_unseen()
        was_due, self._was_due = self._was_due, False
        return was_due

    @property
    def is_due_soon(self) -> bool:
        """True if an iteration ends that is one of the first, or one of the last two before a scan that is due in any case."""
        after = self.number - self._earlier + 1
        soon = range(after + 1, after + 3)
        return after < POLICY.last_early_scan or self._was_due or not self._scan_at.isdisjoint(soon)

    def suspect(self, why: str) -> None:
        """Ask for a scan. Does nothing soon after the previous suspicion."""
        if self.number >= self._next_suspicion:
            self.suspicion = why

    def followed(self) -> None:
        """The suspicion was followed by a scan."""
        self.suspicion = ""
        pause = max(POLICY.suspicion_pause, int(POLICY.suspicion_pause_share * self.number))
        self._next_suspicion = self.number + pause

    def plan(self, may_stop: bool, full: int | None) -> None:
        """Plan the next check after a scan.

        may_stop   growth was reported that may still stop
        full       iteration in which a periodically emptied container will be full; None if unknown
        """
        wait = max(POLICY.rescan_iterations, int(POLICY.rescan_share * self.number))
        after = self.number + wait if may_stop else 0
        self.rescan_at = min(after, full or after)

    def spend(self, seconds: float) -> None:
        """Note the cost of a scan."""
        self._spent_seconds += seconds

    def may_spend(self, more: float = 0.0) -> bool:
        """True if there is time for a scan that is not due in any case. ``more``: extra seconds in all for scans of this sort."""
        return self._spent_seconds < MOST_SECONDS + more + RUN_SHARE * (time.monotonic() - self._started)


class EvaluationSchedule:
    """Forwards without a backward, and when the graphs that they build are scanned."""

    def __init__(self) -> None:
        self.boundaries: deque[int] = deque(maxlen=512)
        """Autograd's sequence numbers at the forwards since the last backward."""
        self._scan_at = POLICY.dropped_graphs

    def __len__(self) -> int:
        return len(self.boundaries)

    def clear(self) -> None:
        """A backward begins."""
        self.boundaries.clear()
        self._scan_at = POLICY.dropped_graphs

    def add(self, sequence_number: int) -> None:
        self.boundaries.append(sequence_number)

    @property
    def is_due(self) -> bool:
        return len(self.boundaries) >= self._scan_at

    def scanned(self) -> None:
        """Scan again after six more forwards, then ever rarer: growth shows from scan to scan."""
        built = len(self.boundaries)
        self._scan_at = built + max(POLICY.evaluation_rescan, int(POLICY.evaluation_rescan_share * built))

    def scan_soon(self) -> None:
        self._scan_at = POLICY.dropped_graphs
