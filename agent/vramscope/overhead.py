"""Measures inside the run what watching costs, from steps that were watched and steps that were left alone.

The steps are interleaved by the clock. The difference of the medians is what phases and categories add; one reading of
the allocator a step is left on in every step, because the step's peak must stay exact, and is added as it was timed.
"""

from __future__ import annotations

import statistics
from collections import deque

from vramscope import wire
from vramscope.steps.clock import WARM_UP_STEPS, FinishedStep

FEWEST_UNWATCHED = 16
WINDOW = 400
"""newest unwatched steps kept, and as many times BLOCK/UNWATCHED watched ones: a run that changes is judged as it is now"""


class OverheadMeter:
    """Fed by the sampler with finished steps; gives an Overhead message when asked."""

    def __init__(self) -> None:
        self._watched: deque[int] = deque(maxlen=WINDOW * 4)
        self._unwatched: deque[int] = deque(maxlen=WINDOW)
        self._left_on: deque[int] = deque(maxlen=WINDOW)
        self._hook_ns = 0
        self._watched_steps = 0
        self._unwatched_steps = 0
        self._before: FinishedStep | None = None

    def add(self, step: FinishedStep) -> None:
        """One finished step. The first after a change of kind is left out: it holds part of the other kind's work."""
        before, self._before = self._before, step
        self._hook_ns += step.agent_ns
        if step.watched:
            self._watched_steps += 1
        else:
            self._unwatched_steps += 1
        if before is None or before.watched != step.watched or step.number <= WARM_UP_STEPS:
            return
        duration = step.end_ns - before.end_ns
        if step.watched:
            self._watched.append(duration)
        else:
            self._unwatched.append(duration)
            self._left_on.append(step.agent_ns)

    def message(self, sampler_cpu_seconds: float) -> wire.Overhead:
        """The cost as far as it is known by now."""
        seconds = fraction = noise = None
        resolvable = False
        if len(self._unwatched) >= FEWEST_UNWATCHED and len(self._watched) >= FEWEST_UNWATCHED:
            calm = statistics.median(self._unwatched)
            left_on = statistics.median(self._left_on)
            difference = statistics.median(self._watched) - calm + left_on
            # Standard error of the difference of two medians, from the spread of the middle half (1.349 σ wide).
            noise_ns = 1.253 * _spread(self._unwatched) / len(self._unwatched) ** 0.5
            noise_ns += 1.253 * _spread(self._watched) / len(self._watched) ** 0.5
            bare = max(1.0, calm - left_on)
            seconds, fraction, noise = difference / 1e9, difference / bare, 2 * noise_ns / bare
            resolvable = fraction > max(noise, 0.005)
        return wire.Overhead(
            seconds_per_step=seconds,
            fraction=fraction,
            resolvable=resolvable,
            noise_fraction=noise,
            watched_steps=self._watched_steps,
            unwatched_steps=self._unwatched_steps,
            hook_seconds=self._hook_ns / 1e9,
            sampler_cpu_seconds=sampler_cpu_seconds,
        )


def _spread(values: deque[int]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 1.349
