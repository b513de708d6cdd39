"""Which steps are profiled: one after warm-up, a later one with Python stacks, and those that somebody asks for.

What a profile costs is known once there has been one. Before, it is forecast; and none that nobody asked for begins until it
would be a small part of the run's time: the first one a hundredth, so that a run of a minute has one; all together a thousandth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

WARM_UP_STEPS: Final = 20
ASKED_STEPS: Final = 2
FIRST_SHARE: Final = 0.01
"""of the run's time that the first profile takes (GPT-2 small on two cores: after half a minute)"""
SHARE: Final = 0.001
"""of the run's time that profiles take after that, all but those that were asked for"""
FORECAST_STEPS: Final = 8.0
FORECAST_S: Final = 0.1
"""what the first one is taken to cost: so many times a step, of a training that waits for nothing but Python, and the profiler's
own beginning (GPT-2 small on two cores: 7 steps)"""
STACKS_TIMES: Final = 6.0
"""as much as one without stacks, the first time (the tracer's own beginning takes 0.3 s)"""


MOST_IN_VAIN: Final = 8
"""profiles of one session that are begun anew"""


class ProfileRequest(NamedTuple):
    """A profile that should be recorded."""

    reason: str
    steps: int
    stacks: bool
    """with the Python stack of each operation, for source lines"""
    shapes: bool
    trace: bool
    """and the whole trace with it"""


WARM: Final = ProfileRequest("after warm-up", 1, stacks=False, shapes=False, trace=False)
LINES: Final = ProfileRequest("a later step, with source lines", 1, stacks=True, shapes=False, trace=False)
ASKED: Final = ProfileRequest("asked for", ASKED_STEPS, stacks=True, shapes=True, trace=False)
ASKED_TRACE: Final = ASKED._replace(trace=True)


class ProfilePlan:
    """What to profile next. Asked on the training thread; :meth:`ask` and :meth:`ended` come from others.

    by_itself  False: only what somebody asks for
    now        seconds, rising
    """

    def __init__(self, *, by_itself: bool = True, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began_s = now()
        self._waiting: list[ProfileRequest] = [WARM, LINES] if by_itself else []
        self._asked: ProfileRequest | None = None
        self._spent_s = 0.0
        self._in_vain = 0
        self._known_s: float | None = None

    def ask(self, *, trace: bool) -> None:
        """Somebody would like a profile of the next steps. Asked twice before it begins, there is one."""
        self._asked = ASKED_TRACE if trace or self._asked is ASKED_TRACE else ASKED

    def may_wish(self, step: int) -> bool:
        """Whether it is worth while to ask; after each step that costs next to nothing."""
        return self._asked is not None or (bool(self._waiting) and step % WARM_UP_STEPS == 0)

    def wish(self, step: int, step_s: float) -> ProfileRequest | None:
        """The profile to begin now, after so many steps of so many seconds; None: none."""
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

    def begun(self, wish: ProfileRequest) -> None:
        """It is being recorded."""
        if wish is self._asked:
            self._asked = None
        elif wish in self._waiting:
            self._waiting.remove(wish)

    def again(self, wish: ProfileRequest) -> None:
        """It was begun in vain. A few times, then it is let go."""
        self._in_vain += 1
        if self._in_vain > MOST_IN_VAIN:
            return
        if wish in (ASKED, ASKED_TRACE):
            self._asked = self._asked or wish
        else:
            self._waiting.insert(0, wish)

    def missed(self) -> None:
        """It cannot be recorded: the profiler is somebody else's. What is asked for is forgotten."""
        self._asked = None

    def ended(self, wish: ProfileRequest, seconds: float) -> None:
        """It is recorded, and cost the training and our thread so much in all."""
        if wish in (WARM, LINES):
            self._spent_s += seconds
        if not wish.stacks:
            self._known_s = seconds
