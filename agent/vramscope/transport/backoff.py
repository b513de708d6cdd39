"""The times in which the server takes nothing: how long to wait before the next try, and what the user hears of it."""

from __future__ import annotations

import math
import random
from typing import Final

from vramscope.process import terminal
from vramscope.transport.http import ServerAnswer

SHORTEST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
"""After a refusal always the longest: nothing changes until somebody mends a token or an address."""

FAILURES_UNTIL_BUSY_IS_SAID: Final = 3
SAY_AGAIN_S: Final = 60.0
"""A server that comes and goes is told about once a minute at most."""


class Outage:
    """Whether one is on, since how many tries, until when to wait. Moments are ``time.monotonic`` seconds."""

    def __init__(self, *, for_good: bool = False) -> None:
        """for_good: there is nobody to send to, and never will be in this process"""
        self._random = random.Random()  # (never the user's generator, whose state is theirs)
        self.for_good = self.on = for_good
        self.next_try_s = math.inf if for_good else 0.0
        self._failures = 0
        self._said = False
        self._said_at_s = -SAY_AGAIN_S

    def goes_on(self, answer: ServerAnswer, now_s: float, place: str, *, silent: bool = False) -> None:
        """Another try failed: wait longer, between half and the whole of a doubling pause, so that ranks spread out.

        The first time, the user hears why, and where samples are kept.
        """
        pause_s = min(LONGEST_PAUSE_S, SHORTEST_PAUSE_S * 2 ** min(self._failures, 10)) * self._random.uniform(0.5, 1.0)
        if answer.outcome == "refused":
            pause_s = LONGEST_PAUSE_S * self._random.uniform(0.8, 1.2)
        if answer.retry_after_s is not None:
            pause_s = max(answer.retry_after_s, SHORTEST_PAUSE_S)
        self.on = True
        self.next_try_s = now_s + pause_s
        self._failures += 1
        if answer.outcome == "busy" and self._failures < FAILURES_UNTIL_BUSY_IS_SAID:
            return  # asking for patience is no news
        if self._said or silent or now_s < self._said_at_s + SAY_AGAIN_S or not terminal.speaks_for_host():
            return
        self._said = True
        self._said_at_s = now_s
        terminal.say(f"{answer.text}; keeping samples in {place}, will send them when it is back")

    def is_over(self, now_s: float) -> None:
        """The server answers again."""
        self.on = False
        self.next_try_s = now_s
        self._failures = 0

    def caught_up(self, batches: int) -> None:
        """All that was kept is sent: told to whoever heard of the outage."""
        if self._said:
            terminal.say(f"server is back; sent {batches} batches")
        self._said = False
