"""Which steps are recorded: the first ones, a later one, one after a peak has risen, when a leak was found, and on request."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

FIRST_STEPS: Final = 3
"""gradients come with the first step, optimizer state with its end: from the third on a training repeats itself"""
LATER_STEP: Final = 20
ASKED_STEPS: Final = 2
SHARE: Final = 0.001
"""of the run's time that the windows take, all but the first and those that were asked for"""
RISE: Final = 1.1
LEAST_RISE_BYTES: Final = 64 << 20
MOST_LEAKS: Final = 3
"""windows after leaks were found in one session: they are worth more than their share of the time, and few trainings leak"""
MOST_RISES: Final = 8
"""windows after risen peaks in one session, of each kind"""


class WindowRequest(NamedTuple):
    """A window that should be recorded."""

    reason: str
    steps: int
    stacks_from: int
    """how many of its steps go by before Python stacks and modules are recorded too: they cost more than all the rest"""
    frees: bool = False
    """with the stacks of what lets go, too"""


FIRST: Final = WindowRequest("the first steps", FIRST_STEPS, FIRST_STEPS - 1)
LATER: Final = WindowRequest("a later step", 1, 0)
RISEN: Final = WindowRequest("the peak rose", 1, 0)
RESERVED_ROSE: Final = WindowRequest("reserved rose", 1, 0)
"""and what is allocated did not: the pieces got worse"""
LEAK: Final = WindowRequest("a leak was found", 2, 0)
"""one step from look to look"""
ASKED: Final = WindowRequest("asked for", ASKED_STEPS, 0, frees=True)
"""somebody looks: who let go is worth what it costs (`History.begin`) there alone"""


class WindowPlan:
    """What to record next. Asked on the training thread; :meth:`ask` and :meth:`ended` come from others.

    now   seconds, rising
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began_s = now()
        self._waiting: WindowRequest | None = FIRST
        self._asked = False
        self._leak_waits = False
        self._leaks_left = MOST_LEAKS
        self._later_is_due = True
        self._left = {RISEN: MOST_RISES, RESERVED_ROSE: MOST_RISES}
        self._allocated = KnownPeak()
        self._reserved = KnownPeak()
        self._spent_s = 0.0
        self._step_s = 0.0

    def ask(self) -> None:
        """Somebody would like a window of the next steps. Asked twice before it begins, there is one."""
        self._asked = True

    def leak_found(self) -> None:
        """Of what it holds a window can tell what its fix would bring. Several that are found at once have one."""
        self._leak_waits = self._leaks_left > 0

    def wish(self) -> WindowRequest | None:
        """The window to begin now; None: none."""
        if self._asked:
            return ASKED
        if self._leak_waits and self._waiting is not FIRST:
            return LEAK
        waiting = self._waiting
        return waiting if waiting is FIRST or (waiting is not None and self._is_affordable(waiting)) else None

    def begun(self, wish: WindowRequest) -> None:
        """It is being recorded."""
        if wish is ASKED:
            self._asked = False
        if wish is LEAK:
            self._leaks_left -= 1
        if wish in self._left:
            self._left[wish] -= 1
        if wish in (LEAK, ASKED):
            self._leak_waits = False
        if wish is self._waiting:
            self._waiting = None

    def missed(self) -> None:
        """It cannot be recorded: the history is somebody else's. What is asked for is forgotten, a later one comes later."""
        self._asked = self._leak_waits = False
        self._waiting = None

    def ended(self, steps: int, seconds: float, allocated_bytes: int, reserved_bytes: int) -> None:
        """A window is recorded: so many steps, it took so long on the training thread and ours, and these were its peaks."""
        self._spent_s += seconds
        self._step_s = seconds / max(1, steps)
        self._allocated.see(allocated_bytes)
        self._reserved.see(reserved_bytes)

    def step_ended(self, step: int, allocated_bytes: int, reserved_bytes: int) -> None:
        """A step that no window holds: optimizer steps finished, and its peaks."""
        if self._later_is_due and step >= LATER_STEP and self._waiting is None:
            self._later_is_due = False
            self._waiting = LATER
        if allocated_bytes > self._allocated.risen_bytes and self._left[RISEN]:
            self._waiting = RISEN
        elif reserved_bytes > self._reserved.risen_bytes and self._left[RESERVED_ROSE]:
            self._waiting = self._waiting or RESERVED_ROSE
        else:
            return
        self._allocated.see(allocated_bytes)
        self._reserved.see(reserved_bytes)

    def _is_affordable(self, wish: WindowRequest) -> bool:
        return self._spent_s + self._step_s * wish.steps <= SHARE * (self._now() - self._began_s)


class KnownPeak:
    """The highest peak of one counter that the windows hold."""

    def __init__(self) -> None:
        self._bytes = 0
        self.risen_bytes = sys.maxsize
        """above which a peak has risen: above what the windows hold, of which there is one"""

    def see(self, peak_bytes: int) -> None:
        if peak_bytes > self._bytes:
            self._bytes = peak_bytes
            self.risen_bytes = max(int(peak_bytes * RISE), peak_bytes + LEAST_RISE_BYTES)
