"""Chooses the steps to profile: one after warm-up, a later one with Python stacks, and those on request.

The cost of a profile is known after the first one. Before, it is estimated. A profile that nobody requested begins only
when it would be a small part of the run's time: a hundredth for the first one, so that a run of a minute has one; a
thousandth for all together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

WARM_UP_STEPS: Final = 20
ASKED_STEPS: Final = 2
FIRST_SHARE: Final = 0.01
"""Part of the run's time for the first profile (GPT-2 small on two cores: after half a minute)."""
SHARE: Final = 0.001
"""Part of the run's time for later profiles, except those on request."""
FORECAST_STEPS: Final = 8.0
FORECAST_S: Final = 0.1
"""Estimated cost of the first profile: this many seconds for the profiler's start, and FORECAST_STEPS times a step of a
training that waits for Python only (GPT-2 small on two cores: 7 steps)."""
STACKS_TIMES: Final = 6.0
"""Estimated cost of the first profile with stacks, relative to one without (the tracer's start takes 0.3 s)."""


MAX_RETRIES: Final = 8
"""Maximum number of aborted profiles in one session that are retried."""


class ProfileRequest(NamedTuple):
    """A profile to be recorded."""

    reason: str
    steps: int
    stacks: bool
    """True: record the Python stack of each operation, for source lines."""
    shapes: bool
    trace: bool
    """True: keep the whole trace."""


WARM: Final = ProfileRequest("after warm-up", 1, stacks=False, shapes=False, trace=False)
LINES: Final = ProfileRequest("a later step, with source lines", 1, stacks=True, shapes=False, trace=False)
ASKED: Final = ProfileRequest("asked for", ASKED_STEPS, stacks=True, shapes=True, trace=False)
ASKED_TRACE: Final = ASKED._replace(trace=True)


class ProfilePlan:
    """Decides what to profile next, on the training thread. :meth:`ask` and :meth:`ended` are called from other threads.

    by_itself  False: only on request
    now        seconds, rising
    """

    def __init__(self, *, by_itself: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began_s = now()
        self._waiting: list[ProfileRequest] = [WARM, LINES] if by_itself else []
        self._asked: ProfileRequest | None = None
        self._spent_s = 0.0
        self._retries = 0
        self._known_s: float | None = None

    def ask(self, *, trace: bool) -> None:
        """Request a profile of the next steps. Requests before it begins share one profile."""
        self._asked = ASKED_TRACE if trace or self._asked is ASKED_TRACE else ASKED

    def is_due(self, step: int) -> bool:
        """Return whether :meth:`next_request` should be called. Costs almost nothing after each step."""
        return self._asked is not None or (bool(self._waiting) and step % WARM_UP_STEPS == 0)

    def next_request(self, step: int, step_s: float) -> ProfileRequest | None:
        """Return the profile to begin now, or None. ``step_s``: duration of a step."""
        if self._asked is not None:
            return self._asked
        if step < WARM_UP_STEPS or not self._waiting:
            return None
        forecast_s = FORECAST_STEPS * step_s + FORECAST_S if self._known_s is None else self._known_s
        if self._waiting[0].stacks:
            forecast_s *= STACKS_TIMES
        share = FIRST_SHARE if self._waiting[0] is WARM else SHARE
        affordable = self._spent_s + forecast_s <= share * (self._now() - self._began_s)
        return self._waiting[0] if affordable else None

    def mark_started(self, request: ProfileRequest) -> None:
        """Record that a profile is being recorded."""
        if request is self._asked:
            self._asked = None
        elif request in self._waiting:
            self._waiting.remove(request)

    def again(self, request: ProfileRequest) -> None:
        """Retry an aborted profile, a limited number of times."""
        self._retries += 1
        if self._retries > MAX_RETRIES:
            return
        if request in (ASKED, ASKED_TRACE):
            self._asked = self._asked or request
        else:
            self._waiting.insert(0, request)

    def missed(self) -> None:
        """Record that nothing can be recorded, because the program uses the profiler. A request is dropped."""
        self._asked = None

    def ended(self, request: ProfileRequest, seconds: float) -> None:
        """Record the end of a profile and its total cost for the training and the agent's thread."""
        if request in (WARM, LINES):
            self._spent_s += seconds
        if not request.stacks:
            self._known_s = seconds
