"""How long a run must be silent to be lost, counted only while this server was listening."""

from __future__ import annotations

from typing import Final

LATE_TICK_NS: Final = 5_000_000_000
"""Shortest time between two ticks, of which there is one a second, that shows a jump of the clock or a sleep."""


class Silence:
    """Counts the time that this server has listened: since its start, the last jump of its clock, or the machine's last sleep."""

    def __init__(self, now_ns: int, lost_after_ns: int) -> None:
        self.lost_after_ns = lost_after_ns
        self.went_back = False
        """Whether the clock went back. What was sent in its future was then sent before, not by a machine whose clock is ahead."""
        self._ticked_ns = self._since_ns = now_ns

    def tick(self, now_ns: int) -> bool:
        """Called every second. True if this server has listened as long as makes a silent run a lost one."""
        if not 0 <= now_ns - self._ticked_ns <= max(self.lost_after_ns // 2, LATE_TICK_NS):
            self._since_ns = now_ns
        self.went_back = self.went_back or now_ns < self._ticked_ns
        self._ticked_ns = now_ns
        return now_ns - self._since_ns > self.lost_after_ns
