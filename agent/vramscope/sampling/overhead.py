"""Measures inside the run what watching costs, from steps that were watched and steps that were left alone.

The clock interleaves them. Each stretch of steps left alone is compared with the watched steps right before and after it,
so that what drifts in the training or on the machine falls out; the cost is the median of these differences, and its noise
comes from how they scatter. One reading of the allocator is left on in every step, because the step's peak must stay
exact; it is added as it was timed. A median does not see scans and recordings, which are rare and long. They are added as they
were timed, too, spread over all steps.
"""

from __future__ import annotations

import statistics
from collections import deque

from vramscope.protocol import messages
from vramscope.steps.detail_plan import WARM_UP_STEPS
from vramscope.steps.records import StepRecord

FEWEST_STRETCHES = 8
NEIGHBOURS = 8
"""Number of watched steps on either side of a group of control steps that it is compared with."""
MOST_STRETCHES = 400
RARE = 8
"""Factor on the typical agent time of a step above which a scan or a recording is part of it."""
STEPS_BETWEEN_TYPICAL = 32
"""Number of watched steps after which the typical agent time is computed again."""
LEAST_FRACTION = 0.005
"""A cost below this fraction is shown as "below 0.5 %"."""


class OverheadMeter:
    """Fed by the sampler with finished steps; gives an Overhead message when asked."""

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=MOST_STRETCHES)
        self._calm_medians: deque[float] = deque(maxlen=MOST_STRETCHES)
        self._left_on: deque[int] = deque(maxlen=MOST_STRETCHES)
        self._before: deque[int] = deque(maxlen=NEIGHBOURS)
        self._calm: list[int] = []
        self._after: list[int] = []
        self._recent: list[int] = []
        """Agent time of the watched steps since the typical one was computed."""
        self._typical_ns: float | None = None
        """Median agent time of a watched step."""
        self._rare_ns = 0.0
        """Agent time after the warm-up in steps with a scan or a recording, without the typical time."""
        self._steps = 0
        """Number of steps after the warm-up."""
        self._end_ns = 0
        self._hook_ns = 0
        self._watched_steps = 0
        self._unwatched_steps = 0

    def add(self, step: StepRecord) -> None:
        """One finished step, in order."""
        duration, self._end_ns = (step.end_ns - self._end_ns) // step.steps, step.end_ns
        self._hook_ns += step.agent_ns
        if step.watched:
            self._watched_steps += 1
        else:
            self._unwatched_steps += step.steps
        self._add_rare(step)
        if step.number <= WARM_UP_STEPS:
            return
        self._steps += step.steps
        if not step.watched:
            self._left_on.append(step.agent_ns // step.steps)
            if self._after:
                self._compare()
            self._calm.append(duration)
        elif self._calm:
            self._after.append(duration)
            if len(self._after) == NEIGHBOURS:
                self._compare()
        else:
            self._before.append(duration)

    def _add_rare(self, step: StepRecord) -> None:
        typical = self._typical_ns
        if typical is not None and step.agent_ns > RARE * typical and step.number > WARM_UP_STEPS:
            self._rare_ns += step.agent_ns - typical
        if step.watched:  # rare ones too: a typical time that was too low must not stay
            self._recent.append(step.agent_ns)
            if len(self._recent) == STEPS_BETWEEN_TYPICAL:
                self._typical_ns = statistics.median(self._recent)
                self._recent.clear()

    def _compare(self) -> None:
        """A stretch of calm steps and what surrounds it are complete."""
        calm = statistics.median(self._calm)
        self._differences.append(statistics.median([*self._before, *self._after]) - calm)
        self._calm_medians.append(calm)
        self._before.clear()
        self._before.extend(self._after)
        self._calm, self._after = [], []

    def message(self, sampler_cpu_seconds: float, dropped_samples: int | None = None) -> messages.Overhead:
        """The cost as far as it is known by now, and how many rows had to be dropped."""
        seconds = fraction = noise = None
        resolvable = False
        if len(self._differences) >= FEWEST_STRETCHES:
            left_on = statistics.median(self._left_on)
            bare = max(1.0, statistics.median(self._calm_medians) - left_on)
            # Plain steps and control steps do not have the cost of watching.
            watched = self._watched_steps / (self._watched_steps + self._unwatched_steps)
            cost = statistics.median(self._differences) * watched + left_on + self._rare_ns / max(1, self._steps)
            low, _, high = statistics.quantiles(self._differences, n=4)
            # Two standard errors of a median, from the spread of the middle half (1.349 σ wide).
            noise_ns = 2 * 1.253 * (high - low) / 1.349 / len(self._differences) ** 0.5
            seconds, fraction, noise = cost / 1e9, cost / bare, noise_ns / bare
            noise *= watched
            resolvable = fraction > max(noise, LEAST_FRACTION)
        return messages.Overhead(
            seconds_per_step=seconds,
            fraction=fraction,
            resolvable=resolvable,
            noise_fraction=noise,
            watched_steps=self._watched_steps,
            unwatched_steps=self._unwatched_steps,
            hook_seconds=self._hook_ns / 1e9,
            sampler_cpu_seconds=sampler_cpu_seconds,
            dropped_samples=dropped_samples,
        )
