"""Chooses the steps to record: the first ones, a later one, one after a peak rose, two after a leak was found, and on
request."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple

FIRST_STEPS: Final = 3
"""Number of first steps. Gradients come with the first step, optimizer state with its end: from the third on a training
repeats."""
LATER_STEP: Final = 20
ASKED_STEPS: Final = 2
SHARE: Final = 0.001
"""Part of the run's time for windows, except the first and those on request."""
RISE: Final = 1.1
MIN_RISE_BYTES: Final = 64 << 20
MAX_LEAK_WINDOWS: Final = 3
"""Maximum number of windows for leaks in one session. They are worth more than their share of the time, and few trainings
leak."""
MAX_RISE_WINDOWS: Final = 8
"""Maximum number of windows for risen peaks in one session, of each kind."""


class WindowRequest(NamedTuple):
    """A window to be recorded."""

    reason: str
    steps: int
    frees: bool = False
    """True: with the stacks of frees, too."""


FIRST: Final = WindowRequest("the first steps", FIRST_STEPS)
LATER: Final = WindowRequest("a later step", 1)
RISEN: Final = WindowRequest("the peak rose", 1)
RESERVED_ROSE: Final = WindowRequest("reserved rose", 1)
"""Reserved rose and allocated did not: fragmentation increased."""
LEAK: Final = WindowRequest("a leak was found", 2)
"""One step from scan to scan."""
ASKED: Final = WindowRequest("asked for", ASKED_STEPS, frees=True)
"""The only request with stacks of frees. They cost more (`PytorchHistory.begin`), and are recorded only on a user's request."""


class WindowPlan:
    """Decides what to record next, on the training thread. :meth:`ask` and :meth:`ended` are called from other threads.

    now   seconds, rising
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began_s = now()
        self._waiting: WindowRequest | None = FIRST
        self._asked = False
        self._leak_waits = False
        self._leaks_left = MAX_LEAK_WINDOWS
        self._later_is_due = True
        self._left = {RISEN: MAX_RISE_WINDOWS, RESERVED_ROSE: MAX_RISE_WINDOWS}
        self._allocated = KnownPeak()
        self._reserved = KnownPeak()
        self._spent_s = 0.0
        self._step_s = 0.0

    def ask(self) -> None:
        """Request a window of the next steps. Requests before it begins share one window."""
        self._asked = True

    def leak_found(self) -> None:
        """Request a window for a leak, to predict the effect of its fix. Leaks found at once share one window."""
        self._leak_waits = self._leaks_left > 0

    def training_begins(self) -> None:
        """Request the first steps again: their window ended before, in an inference."""
        self._waiting = FIRST

    def next_request(self) -> WindowRequest | None:
        """Return the window to begin now, or None."""
        if self._asked:
            return ASKED
        if self._leak_waits and self._waiting is not FIRST:
            return LEAK
        waiting = self._waiting
        return waiting if waiting is FIRST or (waiting is not None and self._is_affordable(waiting)) else None

    def mark_started(self, request: WindowRequest) -> None:
        """Record that a window is being recorded."""
        if request is ASKED:
            self._asked = False
        if request is LEAK:
            self._leaks_left -= 1
        if request in self._left:
            self._left[request] -= 1
        if request in (LEAK, ASKED):
            self._leak_waits = False
        if request is self._waiting:
            self._waiting = None

    def missed(self) -> None:
        """Record that nothing can be recorded, because the program uses the history. Requests are dropped; a later window
        may follow."""
        self._asked = self._leak_waits = False
        self._waiting = None

    def ended(self, steps: int, seconds: float, allocated_bytes: int, reserved_bytes: int) -> None:
        """Record the end of a window: its steps, its time on the training thread and on the agent's, and its peaks."""
        self._spent_s += seconds
        self._step_s = seconds / max(1, steps)
        self._allocated.update(allocated_bytes)
        self._reserved.update(reserved_bytes)

    def step_ended(self, step: int, allocated_bytes: int, reserved_bytes: int) -> None:
        """Record a step outside of windows: number of completed steps, and its peaks."""
        if self._later_is_due and step >= LATER_STEP and self._waiting is None:
            self._later_is_due = False
            self._waiting = LATER
        if allocated_bytes > self._allocated.risen_bytes and self._left[RISEN]:
            self._waiting = RISEN
        elif reserved_bytes > self._reserved.risen_bytes and self._left[RESERVED_ROSE]:
            self._waiting = self._waiting or RESERVED_ROSE
        else:
            return
        self._allocated.update(allocated_bytes)
        self._reserved.update(reserved_bytes)

    def _is_affordable(self, request: WindowRequest) -> bool:
        return self._spent_s + self._step_s * request.steps <= SHARE * (self._now() - self._began_s)


class KnownPeak:
    """Highest peak of one counter in the windows so far."""

    def __init__(self) -> None:
        self._bytes = 0
        self.risen_bytes = sys.maxsize
        """Threshold above which a peak has risen; there is none before the first window."""

    def update(self, peak_bytes: int) -> None:
        if peak_bytes > self._bytes:
            self._bytes = peak_bytes
            self.risen_bytes = max(int(peak_bytes * RISE), peak_bytes + MIN_RISE_BYTES)
