"""Decides from step to step how closely the next one is watched, so that the agent keeps to its share of the time.

A detailed step is watched by all hooks. In a control step phases are not read: it measures what watching costs. Where detailed
steps cost more than the budget, most steps are plain: only their end is seen, and one reading of the peaks covers a group.
"""

from __future__ import annotations

import statistics
from collections import deque
from random import Random
from typing import Final, NamedTuple

from vramscope.settings import BUDGET

ALLOWANCE_NS: Final = 250_000_000
"""Time that the agent may take in a run beside that share: import, attach and scans included. Its first steps matter most.

The goal is 0.3 s. The agent's clock sees 60 to 80 % of what the hooks take: not their calls, nor the caches that they empty."""
WARM_UP_STEPS: Final = 100
"""Number of first steps that are always detailed: their times say nothing about cost."""
BLOCK_STEPS: Final = 64
"""Number of steps in which one group of control steps lies, at a random place."""
UNWATCHED_STEPS: Final = 4
"""Number of consecutive control steps in a group."""
RECENT_STEPS: Final = 33
"""Number of steps whose median is the cost and the duration of a step. A median ignores steps with scans or recordings."""
GROUPS_TO_KNOW: Final = 50
"""Number of groups after which the cost is known. Afterwards groups are ten times rarer."""
MOST_IN_GROUP: Final = 128
"""Maximum number of plain steps with one reading."""
MOST_PLAIN_STEPS: Final = 1024
"""Maximum number of plain steps between two detailed ones."""
PLAIN_HOOKS_NS: Final = 4_000
"""Time that the hooks of a plain step take between the kernels of a training, where the caches are cold (measured: 3 to 5 µs)."""
LEAST_SHARE: Final = 0.25
"""Share of the budget that readings and detailed steps get, however short the steps are and whatever else takes of it."""
SHARE_OF_READINGS: Final = 0.5
"""Share of the budget for the readings of plain steps. The rest is for detailed steps."""
FEWEST_TO_COMPARE: Final = 9
"""Number of groups of plain steps from which their duration is known."""
STEPS_AFTER_RISE: Final = 8
"""Number of detailed steps after a group of plain steps with a higher peak than all before."""
STEPS_AFTER_REFUSAL: Final = 8
"""Number of steps before plain ones are asked for again, where the run needed details."""


class EndedStep(NamedTuple):
    """What the plan learns at the end of a record.

    number        steps that have ended in this session
    steps         of those, the steps of this record; more than 1: plain ones
    is_detailed   True if phases were read
    is_plain      True if the hooks were absent
    peaks         highest allocated bytes, by device
    agent_ns      agent time within duration_ns
    """

    number: int
    steps: int
    is_detailed: bool
    is_plain: bool
    peaks: list[int]
    agent_ns: int
    duration_ns: int


class NextSteps(NamedTuple):
    """How the next steps are watched."""

    is_control: bool = False
    plain_steps: int = 0
    """Number of plain steps with one reading; 0: the next step is no plain one."""


DETAILED: Final = NextSteps()


class StepPlan:
    """Plan of one session.

    random   Draws the places of control steps and the numbers of plain steps, so that no period of the training coincides
             with them. Never the user's generator, whose state must not change.
    budget   share of the time that watching may take
    """

    def __init__(self, random: Random | None = None, budget: float = BUDGET) -> None:
        self._random = random or Random(0x5EED)
        self._budget = self._whole_budget = budget
        self._control_from = self._control_until = WARM_UP_STEPS
        self._control_groups = 0
        self._detailed_until = WARM_UP_STEPS
        self._plain_left = 0
        """Plain steps until the next detailed one."""
        self._in_group = 0
        """Plain steps with one reading."""
        self._detailed_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._control_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """Agent time in control steps; some hooks stay on."""
        self._group_costs_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        """Agent time of whole groups of plain steps: a reading, for the most part."""
        self._durations_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._detailed_durations_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._plain_durations_ns: deque[int] = deque(maxlen=RECENT_STEPS)
        self._spent_ns = 0
        """Agent time in all steps so far."""
        self._highest: list[int] = []
        """Highest peak so far, by device."""

    def next_steps(self, ended: EndedStep) -> NextSteps:
        """Plan the steps after this record. Medians are computed where new plain or control steps are planned."""
        number = ended.number
        if self._note(ended) and ended.is_plain:
            self._detailed_until, self._plain_left = number + STEPS_AFTER_RISE, 0
        elif self._plain_left > 0 and not ended.is_plain:
            self._plan_control_steps_instead(number)
        if self._control_from <= number < self._control_until:
            return NextSteps(is_control=True)
        if number < self._detailed_until:
            return DETAILED
        if ended.is_plain:
            self._plain_left -= ended.steps
            return NextSteps(plain_steps=min(self._in_group, self._plain_left)) if self._plain_left > 0 else DETAILED
        if number >= self._control_until:
            if self._plan_plain_steps(number):
                return NextSteps(plain_steps=min(self._in_group, self._plain_left))
            self._plan_control_steps(number)
        return DETAILED

    def details_needed(self, number: int) -> None:
        """The steps after this one are detailed, and no plain ones."""
        self._detailed_until, self._plain_left = number + STEPS_AFTER_REFUSAL, 0

    def count_start(self, nanoseconds: int) -> None:
        """Count time that the agent took before the first step. It belongs to the allowance."""
        self._spent_ns += nanoseconds

    def threads_take(self, share: float) -> None:
        """Note the share of the time that the agent's own threads take. Watching the steps may take the rest of the budget."""
        self._budget = max(self._whole_budget - share, LEAST_SHARE * self._whole_budget)

    def interrupted(self) -> None:
        """The training does something else than steps: the next one is a detailed one."""
        self._plain_left = 0

    def _note(self, ended: EndedStep) -> bool:
        """True if a peak is higher than all before."""
        if ended.is_plain:
            self._group_costs_ns.append(ended.agent_ns)
        else:
            (self._detailed_costs_ns if ended.is_detailed else self._control_costs_ns).append(ended.agent_ns)
        self._spent_ns += ended.agent_ns
        took_ns = ended.duration_ns // ended.steps
        self._durations_ns.append(took_ns)
        if ended.is_plain:
            self._plain_durations_ns.append(took_ns)
        elif ended.is_detailed:
            self._detailed_durations_ns.append(took_ns)
        known = self._highest
        if len(ended.peaks) == len(known) and not any(map(int.__gt__, ended.peaks, known)):
            return False
        self._highest = [max(peak, *known[at : at + 1], 0) for at, peak in enumerate(ended.peaks)]
        return True

    def _plan_plain_steps(self, number: int) -> bool:
        """Plan plain steps if detailed ones cost more than the budget. False if they do not."""
        cost = self._detailed_cost_ns()
        allowed = self._budget * statistics.median(self._durations_ns)
        if cost <= allowed or self._spent_ns <= ALLOWANCE_NS:
            return False
        allowed = max(allowed - PLAIN_HOOKS_NS, LEAST_SHARE * allowed)
        # Until a group has been measured: a detailed step's cost is more than a reading's.
        reading = statistics.median(self._group_costs_ns) if self._group_costs_ns else cost / 3
        for_readings = max(1.0, SHARE_OF_READINGS * allowed)
        self._in_group = max(1, min(MOST_IN_GROUP, round(reading / for_readings)))
        left = max(allowed - reading / self._in_group, SHARE_OF_READINGS * allowed, 1.0)
        length = round(cost / left * self._random.uniform(0.5, 1.5))
        self._plain_left = max(1, min(MOST_PLAIN_STEPS, length))
        return True

    def _detailed_cost_ns(self) -> float:
        """What watching adds to a step: by the agent's own clock, or by comparison with plain steps if that says more."""
        cost = statistics.median(self._detailed_costs_ns)
        if len(self._plain_durations_ns) < FEWEST_TO_COMPARE:
            return cost
        longer = statistics.median(self._detailed_durations_ns) - statistics.median(self._plain_durations_ns)
        return max(cost, longer)

    def _plan_control_steps_instead(self, number: int) -> None:
        """Plain steps were wanted, and this training does not allow them. So phases are read in some of the steps only."""
        self._plain_left = 0
        left_on = statistics.median(self._control_costs_ns) if self._control_costs_ns else 0.0
        allowed = max(1.0, self._budget * statistics.median(self._durations_ns))
        for_one = (statistics.median(self._detailed_costs_ns) - left_on - allowed) / allowed
        if for_one > 0:
            self._control_from, self._control_until = number, number + min(BLOCK_STEPS, max(1, round(for_one)))
            self._detailed_until = self._control_until + min(BLOCK_STEPS, max(1, round(1 / for_one)))
        else:
            self._detailed_until = number + BLOCK_STEPS

    def _plan_control_steps(self, number: int) -> None:
        watch = BLOCK_STEPS * (1 if self._control_groups < GROUPS_TO_KNOW else 10)
        self._control_from = number + self._random.randint(1, max(1, 2 * watch - 1))
        self._control_until = self._control_from + UNWATCHED_STEPS
        self._control_groups += 1
