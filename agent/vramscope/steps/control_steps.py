"""Chooses control steps: steps that the agent leaves unwatched, so that the run itself measures what watching costs."""

from __future__ import annotations

import statistics
from collections import deque
from random import Random

PHASES_SHARE = 0.02
"""Share of a step's time that reading its phases may take. Above it, phases are read in some of the steps only."""
WARM_UP_STEPS = 100
"""Number of first steps that are always watched: they matter most, and their times say nothing about cost."""
BLOCK_STEPS = 64
"""Number of steps in which one group of control steps lies, at a random place."""
UNWATCHED_STEPS = 4
"""Number of consecutive control steps in a group."""
RECENT_STEPS = 33
"""Number of steps whose median is the cost and the duration of a step. A median ignores steps with scans or recordings."""
GROUPS_TO_KNOW = 50
"""Number of groups after which the cost is known. Afterwards groups are ten times rarer."""


class ControlSteps:
    """Decides from step to step whether the next one is a control step.

    random   Draws the places of groups. Never the user's generator, whose state must not change.
    """

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random(0x5EED)
        self._from = self._until = WARM_UP_STEPS
        self._groups = 0
        self._watched_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._control_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """Agent time in control steps; some hooks stay on."""
        self._durations_ns: deque[int] = deque(maxlen=RECENT_STEPS)

    def next_is_control(self, step: int, watched: bool, agent_ns: int, duration_ns: int) -> bool:
        """True if the step after this one is a control step.

        step      Number of steps that have ended in this session.
        watched   True if its phases were read.
        agent_ns  Agent time within duration_ns.
        """
        (self._watched_costs_ns if watched else self._control_costs_ns).append(agent_ns)
        self._durations_ns.append(duration_ns)
        if step < WARM_UP_STEPS:
            return False
        if step >= self._until:
            watch, leave = self._next_group()
            # A random place is never in step with a period of the training.
            self._from = step + self._random.randint(1, max(1, 2 * watch - 1))
            self._until = self._from + leave
            self._groups += 1
        return self._from <= step < self._until

    def _next_group(self) -> tuple[int, int]:
        """Mean number of steps to watch, and number of control steps after them. Takes 5 µs, once a group."""
        left_on = statistics.median(self._control_costs_ns) if self._control_costs_ns else 0
        cost = max(0, statistics.median(self._watched_costs_ns) - left_on)
        allowed = PHASES_SHARE * statistics.median(self._durations_ns)
        if cost <= allowed:
            return BLOCK_STEPS * (1 if self._groups < GROUPS_TO_KNOW else 10), UNWATCHED_STEPS
        control_for_one = (cost - allowed) / max(allowed, 1.0)
        if control_for_one > UNWATCHED_STEPS:
            return 1, min(BLOCK_STEPS, round(control_for_one))
        return min(BLOCK_STEPS, round(UNWATCHED_STEPS / control_for_one)), UNWATCHED_STEPS
