"""Handles outages of the server: the pause before the next try, and the messages for the user."""

from __future__ import annotations

import math
import random
from typing import Final

from vramscope.process import terminal
from vramscope.transport.http import ServerAnswer

SHORTEST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""Longest pause between two tries. After a refusal the pause always has this length, because the user has to correct a token or
an address first."""

BUSY_FAILURES_BEFORE_REPORT: Final = 3
REPORT_INTERVAL_S: Final = 60.0
"""Minimum time between two reports. An unstable server is reported at most once a minute."""


class Outage:
    """State of an outage: whether one is active, the number of tries, and when to try next. Times are ``time.monotonic``
    seconds."""

    def __init__(self, *, permanent: bool = False) -> None:
        """Begin without an outage. ``permanent``: the server is not known, so that nothing can be sent in this process."""
        self._random = random.Random()  # not the global generator, whose state belongs to the user
        self.permanent = self.on = permanent
        self.next_try_s = math.inf if permanent else 0.0
        self._failures = 0
        self._reported = False
        self._reported_at_s = -REPORT_INTERVAL_S

    def record_failure(self, answer: ServerAnswer, now_s: float, location: str, *, silent: bool = False) -> None:
        """Record a failed try and double the pause, at random between half and all of it, so that ranks spread out.

        The first failure is shown to the user, with the reason and the folder where samples are kept.

        """
        pause_s = min(LONGEST_PAUSE_S, SHORTEST_PAUSE_S * 2 ** min(self._failures, 10)) * self._random.uniform(0.5, 1.0)
        if answer.outcome == "refused":
            pause_s = LONGEST_PAUSE_S * self._random.uniform(0.8, 1.2)
        if answer.retry_after_s is not None:
            pause_s = max(answer.retry_after_s, SHORTEST_PAUSE_S)
        self.on = True
        self.next_try_s = now_s + pause_s
        self._failures += 1
        if answer.outcome == "busy" and self._failures < BUSY_FAILURES_BEFORE_REPORT:
            return  # a busy server is not reported
        if (
            self._reported
            or silent
            or now_s < self._reported_at_s + REPORT_INTERVAL_S
            or not terminal.speaks_for_host()
        ):
            return
        self._reported = True
        self._reported_at_s = now_s
        terminal.say(f"{answer.text}; keeping samples in {location}, will send them when it is back")

    def end(self, now_s: float) -> None:
        """Record that the server answers again."""
        self.on = False
        self.next_try_s = now_s
        self._failures = 0

    def caught_up(self, batches: int) -> None:
        """Record that all kept batches are sent. Shown only if the outage was shown."""
        if self._reported:
            terminal.say(f"server is back; sent {batches} batches")
        self._reported = False
