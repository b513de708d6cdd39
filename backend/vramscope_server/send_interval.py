"""How often agents should send, so that the load of a server process depends on itself and not on the number of ranks.

A post costs about 2 ms of CPU. With few ranks they send as they are set; with many, each sends less often, and more at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.5
"""Share of a core that posts may use."""
LEAST_MS: Final = 300
"""A shorter time is not asked for: agents send less often than that on their own."""
MOST_MS: Final = 10_000
WINDOW_SECONDS: Final = 15.0
"""Sessions that sent in this time count; longer than MOST_MS."""
FIRST_COST_SECONDS: Final = 0.002
"""CPU time of a post, until it is measured."""
LEAST_COST_SECONDS: Final = 0.0002
MOST_COST_SECONDS: Final = 0.02
"""A higher one is that of pages, which share the process."""
_MEASURE_SECONDS: Final = 2.0
_MEASURE_POSTS: Final = 50
_SMOOTH: Final = 0.3


class SendInterval:
    """Used on one event loop.

    processes           number of server processes on this machine
    lost_after_seconds  silence after which a run counts as lost; agents send three times in it at least
    """

    def __init__(
        self,
        processes: int = 1,
        lost_after_seconds: float = 30.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._share = SHARE * min(1.0, (os.cpu_count() or 1) / processes)
        self._most_ms = min(MOST_MS, round(1000 * lost_after_seconds / 3))
        self._clock = clock
        self._cpu_clock = cpu_clock
        self.cost_seconds = FIRST_COST_SECONDS
        self._sessions: set[str] = set()
        self._before: set[str] = set()
        self._window_at = self._measured_at = clock()
        self._cpu_seconds = cpu_clock()
        self._posts = 0

    def after_post(self, session: str) -> int:
        """Milliseconds between two turns of this sender; 0: as it is set."""
        now = self._clock()
        self._posts += 1
        self._sessions.add(session)
        if now - self._window_at >= WINDOW_SECONDS:
            self._before, self._sessions, self._window_at = self._sessions, {session}, now
        if now - self._measured_at >= _MEASURE_SECONDS and self._posts >= _MEASURE_POSTS:
            self._measure(now)
        senders = max(len(self._sessions), len(self._before))
        every_ms = round(1000 * senders * self.cost_seconds / self._share)
        return 0 if every_ms < LEAST_MS else min(every_ms, self._most_ms)

    def _measure(self, now: float) -> None:
        cpu_seconds = self._cpu_clock()
        cost = (cpu_seconds - self._cpu_seconds) / self._posts
        cost = min(max(cost, LEAST_COST_SECONDS), MOST_COST_SECONDS)
        self.cost_seconds += _SMOOTH * (cost - self.cost_seconds)
        self._measured_at, self._cpu_seconds, self._posts = now, cpu_seconds, 0
