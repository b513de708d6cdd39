"""Which steps are left alone: few, so that the run itself tells what watching costs, and more where that is more than it may be."""

from __future__ import annotations

import statistics
from collections import deque
from random import Random

PHASES_SHARE = 0.02
"""of a step's time that reading its phases may take; where it takes more, phases are read in a part of the steps only"""
WARM_UP_STEPS = 100
"""steps that are always watched: the first ones tell most, and their times say nothing about cost"""
BLOCK_STEPS = 64
UNWATCHED_STEPS = 4
"""so many in a row are left alone about once in BLOCK_STEPS, at a place drawn anew each time"""
RECENT_STEPS = 33
"""whose median tells what a step costs and lasts: one in which something was looked at, or a window began, tells neither"""
STRETCHES_TO_KNOW = 50
"""after so many the cost is known; from then on steps are left alone only once in ten times BLOCK_STEPS"""


class CalmSteps:
    """From step to step, what the agent took and how long they lasted: whether the next one is left alone.

    random   where in a block they lie; never the user's generator, whose state is theirs
    """

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random(0x5EED)
        self._from = self._until = WARM_UP_STEPS
        self._stretches = 0
        self._watched_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._left_on_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """what is taken in the steps left alone all the same"""
        self._durations_ns: deque[int] = deque(maxlen=RECENT_STEPS)

    def next_is_calm(self, step: int, watched: bool, agent_ns: int, duration_ns: int) -> bool:
        """Whether the step behind this one is left alone.

        step      that has just ended, by number
        watched   its phases were read
        agent_ns  of its duration, that the agent took
        """
        (self._watched_costs_ns if watched else self._left_on_costs_ns).append(agent_ns)
        self._durations_ns.append(duration_ns)
        if step < WARM_UP_STEPS:
            return False
        if step >= self._until:
            watch, leave = self._next_stretches()
            # The place is drawn, so that it is never in step with a period of the training's.
            self._from = step + self._random.randint(1, max(1, 2 * watch - 1))
            self._until = self._from + leave
            self._stretches += 1
        return self._from <= step < self._until

    def _next_stretches(self) -> tuple[int, int]:
        """How many steps to watch on average, and how many to leave alone then. Some 5 µs, once for all of them."""
        left_on = statistics.median(self._left_on_costs_ns) if self._left_on_costs_ns else 0
        cost = max(0, statistics.median(self._watched_costs_ns) - left_on)
        allowed = PHASES_SHARE * statistics.median(self._durations_ns)
        if cost <= allowed:
            return BLOCK_STEPS * (1 if self._stretches < STRETCHES_TO_KNOW else 10), UNWATCHED_STEPS
        calm_for_one = (cost - allowed) / max(allowed, 1.0)
        if calm_for_one > UNWATCHED_STEPS:
            return 1, min(BLOCK_STEPS, round(calm_for_one))
        return min(BLOCK_STEPS, round(UNWATCHED_STEPS / calm_for_one)), UNWATCHED_STEPS
