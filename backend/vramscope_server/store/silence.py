"""How long a run must be silent to be lost, counted only while this server was listening."""

from __future__ import annotations

from typing import Final

LATE_TICK_NS: Final = 5_000_000_000
"""Shortest time between two ticks, of which there is one a second, that shows a jump of the clock or a sleep."""
FUTURE_NS: Final = 3_600_000_000_000
"""What was sent this far in the future was sent before the clock went back, though this server may not have seen that."""


class Silence:
    """Counts the time that this server has listened: since its start, the last jump of its clock, or the machine's last sleep."""

    def __init__(self, now_ns: int, lost_after_ns: int) -> None:
        self.lost_after_ns = lost_after_ns
        self.future_ns = max(FUTURE_NS, lost_after_ns)
        """A sender that was last seen this far in the future is silent. Less, and the clock of another machine may be ahead,
        unless this server saw its own go back."""
        self._ticked_ns = self._since_ns = now_ns

    def tick(self, now_ns: int) -> bool:
        """Called every second. True if this server has listened as long as makes a silent run a lost one."""
        if not 0 <= now_ns - self._ticked_ns <= max(self.lost_after_ns // 2, LATE_TICK_NS):
            self._since_ns = now_ns
        if now_ns < self._ticked_ns:
            self.future_ns = self.lost_after_ns
        self._ticked_ns = now_ns
        return now_ns - self._since_ns > self.lost_after_ns
