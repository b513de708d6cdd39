"""Measures the agent's cost within the run, from the durations of watched steps and control steps.

The clock alternates between both kinds. Each group of control steps is compared with the watched steps right before and after it,
so that slow changes of the training or the machine cancel out. The cost is the median of these differences, and its noise follows
from their spread. Other costs are not in the differences, and are added: one reading of the allocator in every step or group,
which is needed for the exact peak; scans and recordings, which are too rare for a median; the processor time of the agent's
threads; and the hook that stays on in plain steps, by its typical time.

A median is compared with the median step. Scans and recordings are a sum, and are compared with all time of the training: on a
busy machine a step takes much longer on average than by the median. Other programs may also interrupt a scan for long. So both
are read by the clock and in CPU time of the training thread, and the smaller share counts. By the clock alone, interrupted scans
would count; in CPU time alone, a training that waits for its GPU would look short.
"""

from __future__ import annotations

import statistics
from collections import deque

from vramscope.protocol import messages, series
from vramscope.steps.detail_plan import PLAIN_HOOKS_NS, WARM_UP_STEPS
from vramscope.steps.records import StepRecord

MIN_GROUPS = 8
NEIGHBOURS = 8
"""Number of watched steps on either side of a group of control steps that it is compared with."""
MAX_GROUPS = 400
RARE = 8
"""Factor on the typical agent time of a step above which a scan or a recording is part of it."""
STEPS_BETWEEN_TYPICAL = 32
"""Number of watched steps after which the typical agent time is computed again."""
LEAST_FRACTION = 0.005
"""A cost below this fraction is shown as "below 0.5 %"."""


class OverheadMeter:
    """Computes the Overhead message from the finished steps that the sampler adds."""

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=MAX_GROUPS)
        self._control_medians: deque[float] = deque(maxlen=MAX_GROUPS)
        self._control_agent_ns: deque[int] = deque(maxlen=MAX_GROUPS)
        self._before: deque[int] = deque(maxlen=NEIGHBOURS)
        self._control: list[int] = []
        self._after: list[int] = []
        self._recent: list[tuple[int, int]] = []
        """Agent time, and CPU time of the thread, of the watched steps since the typical ones were computed."""
        self._typical_ns: float | None = None
        """Median agent time of a watched step."""
        self._typical_thread_ns = 0.0
        """Median CPU time of the training thread in a watched step."""
        self._rare_ns = self._rare_thread_ns = 0.0
        """Agent time after the warm-up in steps with a scan or a recording, without the typical time; and its CPU time."""
        self._training_ns = 0
        """Time after the warm-up, without the agent's."""
        self._thread_ns = 0
        """CPU time of the training thread after the warm-up."""
        self._steps = 0
        """Number of steps after the warm-up."""
        self._seen = 0
        """Number of steps in this session: a resumed run continues the numbers of the earlier one."""
        self._end_ns = 0
        self._hook_ns = 0
        self._watched_steps = 0
        self._unwatched_steps = 0
        self._plain_steps = 0
        """Number of unwatched steps in groups, in which the hooks were absent."""
        self._threads_from: tuple[float, int] | None = None
        """Processor time of the agent's threads, and steps after the warm-up, at the first message after it."""

    def add(self, step: StepRecord) -> None:
        """Add a finished step. Steps must come in order."""
        duration, self._end_ns = (step.end_ns - self._end_ns) // step.steps, step.end_ns
        self._hook_ns += step.agent_ns
        self._seen += step.steps
        if step.watched:
            self._watched_steps += 1
        else:
            self._unwatched_steps += step.steps
            self._plain_steps += step.steps if step.steps > 1 else 0
        self._add_rare(step)
        if self._seen <= WARM_UP_STEPS:
            return
        self._steps += step.steps
        self._training_ns += max(0, duration * step.steps - step.agent_ns)
        self._thread_ns += max(0, step.thread_ns)
        if not step.watched:
            self._control_agent_ns.append(step.agent_ns // step.steps)
            if self._after:
                self._compare()
            self._control.append(duration)
        elif self._control:
            self._after.append(duration)
            if len(self._after) == NEIGHBOURS:
                self._compare()
        else:
            self._before.append(duration)

    def _add_rare(self, step: StepRecord) -> None:
        typical = self._typical_ns
        if typical is not None and step.agent_ns > RARE * typical and self._seen > WARM_UP_STEPS:
            taken = step.agent_ns - typical
            self._rare_ns += taken
            if step.thread_ns != series.UNKNOWN:
                self._rare_thread_ns += min(taken, max(0.0, step.thread_ns - self._typical_thread_ns * step.steps))
        if step.watched:  # steps with a scan too, so that a typical time that is too low is corrected
            self._recent.append((step.agent_ns, step.thread_ns))
            if len(self._recent) == STEPS_BETWEEN_TYPICAL:
                agent_ns, thread_ns = zip(*self._recent, strict=True)
                self._typical_ns, self._typical_thread_ns = statistics.median(agent_ns), statistics.median(thread_ns)
                self._recent.clear()

    def _compare(self) -> None:
        """Compare a complete group of control steps with the watched steps around it."""
        control = statistics.median(self._control)
        self._differences.append(statistics.median([*self._before, *self._after]) - control)
        self._control_medians.append(control)
        self._before.clear()
        self._before.extend(self._after)
        self._control, self._after = [], []

    def message(self, sampler_cpu_seconds: float, dropped_samples: int | None = None) -> messages.Overhead:
        """Return the cost as far as it is known, and the number of dropped rows."""
        seconds = fraction = noise = None
        resolvable = False
        if self._steps and self._threads_from is None:
            self._threads_from = sampler_cpu_seconds, self._steps
        if len(self._differences) >= MIN_GROUPS:
            agent_ns = statistics.median(self._control_agent_ns)
            steps = self._watched_steps + self._unwatched_steps
            hook_ns = PLAIN_HOOKS_NS * self._plain_steps / steps
            bare = max(1.0, statistics.median(self._control_medians) - agent_ns - hook_ns)
            # Plain steps and control steps do not have the cost of watching.
            watched = self._watched_steps / steps
            typical = statistics.median(self._differences) * watched + agent_ns + hook_ns
            mean = max(bare, self._training_ns / max(1, self._steps))
            summed = self._rare_share() * mean + self._threads_ns(sampler_cpu_seconds)
            low, _, high = statistics.quantiles(self._differences, n=4)
            # Two standard errors of a median, from the spread of the middle half (1.349 σ wide).
            noise_ns = 2 * 1.253 * (high - low) / 1.349 / len(self._differences) ** 0.5
            seconds, noise = (typical + summed) / 1e9, watched * noise_ns / bare
            fraction = typical / bare + summed / mean
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

    def _rare_share(self) -> float:
        """Time of scans and recordings as a share of the training's own time."""
        share = self._rare_ns / max(1, self._training_ns)
        if self._thread_ns > self._rare_thread_ns:
            share = min(share, self._rare_thread_ns / (self._thread_ns - self._rare_thread_ns))
        return share

    def _threads_ns(self, cpu_seconds: float) -> float:
        """Return the processor time of the agent's threads per step. Their start, with its imports, is no part of it."""
        began_seconds, began_steps = self._threads_from or (cpu_seconds, self._steps)
        return (cpu_seconds - began_seconds) * 1e9 / max(1, self._steps - began_steps)
