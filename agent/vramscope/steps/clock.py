"""Keeps the current step and phase of a training, reads the peak counters where one ends, and publishes both to listeners.

The training thread calls :meth:`StepClock.enter` and :meth:`StepClock.end_step` from hooks. Both only read the allocator and
return. The sampler's thread takes the finished steps with ``finished.take`` and does the rest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from operator import methodcaller
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vramscope.memory.peak_counters import PeakCounter
from vramscope.process.tensor_reads import TensorReads
from vramscope.protocol import series
from vramscope.settings import BUDGET
from vramscope.steps.batch_context import BatchContext
from vramscope.steps.detail_plan import EndedStep, StepPlan
from vramscope.steps.events import BreakdownSource, RetentionSource
from vramscope.steps.finished_steps import FinishedSteps
from vramscope.steps.phase import BACKWARD, DATA, EVAL, FORWARD, OTHER
from vramscope.steps.publisher import StepPublisher
from vramscope.steps.records import (
    UNKNOWN_AFTER_STEP,
    AfterStep,
    CategoryBytes,
    PhaseInterval,
    StepRecord,
    after_cuts,
    highest_allocated,
    merged,
)
from vramscope.steps.thread_time import ThreadTime

if TYPE_CHECKING:
    from random import Random

SAME_INSTANT_NS = 50_000
"""A phase that begins this soon after a backward pass begins where the backward pass ended, without a second reading."""

SILENCE_NS = 10_000_000_000
"""After this long without an event from the training thread, another thread may take its place."""

_cut = methodcaller("cut")


class StepClock(StepPublisher):
    """Step and phase of one training.

    phases         False: only whole steps are read, or groups of short ones; phases stay unknown.
    in_every_step  Read phases in every step, whatever the cost; the cost cannot be measured then.
    budget         As for StepPlan.
    now            Clock in nanoseconds, rising.
    random         As for StepPlan.
    """

    def __init__(
        self,
        *,
        phases: bool = True,
        in_every_step: bool = False,
        budget: float = BUDGET,
        now: Callable[[], int] = time.perf_counter_ns,
        random: Random | None = None,
    ) -> None:
        super().__init__()
        self._now = now
        self.step = 0
        """Number of optimizer steps that have ended, those before a resume included."""
        self._earlier_steps = 0
        """Number of steps that ended before this session, where the run was resumed."""
        self.phase: int = OTHER
        self._phases = phases
        self.watched = phases
        """True if the phases of the running step are read."""
        self.is_control_step = False
        """True in an unwatched control step, which measures the agent's own cost, and in plain steps."""
        self.plain_steps_wanted = 0
        """Number of plain steps that are to come next, by the plan."""
        self.is_plain = False
        """True in a group of plain steps."""
        self.plain_ends: list[int] = []
        """Number of autograd's next operation at the end of each plain step of the running group."""
        self._plain_steps = 0
        """Plain steps of the running group that the leak detector knows of."""
        self._plain_intervals = 0
        """Intervals of the running group before the hooks came back."""
        self.saw_forward = False
        """True after the first forward pass of a root module in the running step."""
        self._plan = StepPlan(random, budget) if not in_every_step else None
        self.counters: list[PeakCounter] = []
        self.batch = BatchContext()
        self.optimizer_steps: dict[int, int] = {}
        """Value of ``step`` when an optimizer stepped last, by its identity. Plain steps of the leader are left out."""
        self.reads = TensorReads()
        self.breakdown: BreakdownSource | None = None
        """Adds the bytes by category to each record."""
        self.retention: RetentionSource | None = None
        """Adds what is still alive after the step to each record."""
        self.find_devices: Callable[[], None] | None = None
        """Called at readings while no device is watched, so that the first step with CUDA is exact. Costs 0.3 µs."""
        self._devices: tuple[int, ...] = ()
        self.thread: int | None = None  # identifier of the training thread; None until it is known
        self._intervals: list[PhaseInterval] = []
        self._since_ns = self._entered_ns = now()
        self._micro_steps = 0
        self._boundary: tuple[int, int, int] | None = None
        """Intervals, backward passes and the agent's time at the last :meth:`may_end_step` of the running step."""
        self._agent_ns = self._agent_before_ns = 0
        """Agent time in the running step, and the part of it before the running phase."""
        self._end_ns = self._since_ns
        self._thread_time = ThreadTime()
        self.finished = FinishedSteps()

    def watch(self, counter: PeakCounter) -> None:
        """Include this device in all further readings."""
        if all(counter.device != known.device for known in self.counters):
            self.counters, self._devices = [*self.counters, counter], (*self._devices, counter.device)

    def threads_take(self, share: float) -> None:
        """Note the share of the time that the agent's own threads take. It belongs to the budget."""
        if self._plan is not None:
            self._plan.threads_take(share)

    def count_start(self, nanoseconds: int) -> None:
        """Count the time that the agent took before the first step."""
        if self._plan is not None:
            self._plan.count_start(nanoseconds)

    @property
    def steps_here(self) -> int:
        """Number of steps that have ended in this session."""
        return self.step - self._earlier_steps

    # -- on the training thread ------------------------------------------------------------------------------------

    def enter(self, phase: int) -> None:
        """The training enters a phase. Does nothing if it is in this phase already, or in a control step.

        Cost: one reading a device (about 13 µs); 0.3 µs in an unwatched step and right after a backward pass.
        """
        if phase == BACKWARD:
            if not self.step and not self._micro_steps:
                self.is_training_thread(trains=True)
            self._micro_steps += 1
        if phase == self.phase or not self.watched or not self.is_training_thread():
            if phase == EVAL and not self.watched and self.breakdown is not None:
                self.breakdown.evaluated()
            for continued in self._on_phase_continued:
                continued()
            return
        began = self._now()
        if phase == FORWARD:
            self.saw_forward = True
        elif phase == BACKWARD and not self.saw_forward and self.phase in (OTHER, DATA):
            self.phase = FORWARD  # no module's call began it, but whatever built this graph ran since the last phase
        if self.phase != OTHER or not self._intervals or began - self._entered_ns > SAME_INSTANT_NS:
            self._close(began)
        self.phase = phase
        if self.breakdown is not None and not self.is_plain:
            with self.reads as may_read:
                if may_read:
                    self.breakdown.begin(phase, self._devices, self._intervals[-1].cuts)
        for entered in self._on_phase_entered:
            entered()
        self._entered_ns = self._now()
        self._agent_ns += self._entered_ns - began

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A phase has begun with a call of the root module with these arguments."""
        for take in self._on_phase_inputs:
            take(args, kwargs)

    def may_end_step(self) -> None:
        """Another optimizer than the training's has stepped. ``end_step(divided=True)`` tells that a step ended here."""
        if self.is_training_thread():
            began = self._now()
            self._close(began)
            self._agent_ns += self._now() - began
            self._boundary = len(self._intervals), self._micro_steps, self._agent_ns
            self.phase = DATA

    def begin_plain_steps(self) -> None:
        """The next steps are plain: between their ends nothing is seen. To be called right after the end of a step."""
        self.is_plain = self.is_control_step = True
        self.watched = False

    def _take_plain_steps(self) -> int:
        """Pass the ends of plain steps on to the leak detector. Returns the number of plain steps in the running group."""
        if self.plain_ends:
            self._plain_steps += len(self.plain_ends)
            if self.retention is not None:
                self.retention.plain_steps_ended(self.plain_ends)
            self.plain_ends.clear()
        return self._plain_steps

    def hooks_are_back(self, *, between_steps: bool) -> None:
        """The training does something else than plain steps, and phases are seen again. Within a step its group goes on to the
        step's end."""
        if not self.is_plain or self.watched:
            return
        began = self._now()
        self._take_plain_steps()
        if between_steps:
            self.end_plain_steps()
        else:
            self._close(began)
            self._plain_intervals = len(self._intervals)
        self.watched, self.is_control_step = self._phases, False
        self._agent_ns += self._now() - began
        if self._plan is not None:
            self._plan.interrupted()

    def end_plain_steps(self) -> None:
        """End a group early: record the plain steps that have ended since the last record."""
        if not self.is_plain or not self._take_plain_steps():
            self.is_plain = self.is_plain and self._plain_intervals > 0
            return
        if not self._plain_intervals:
            self._close(self._now())
            self._plain_intervals = len(self._intervals)
        number = self._plain_intervals
        first, self._intervals = merged(self._intervals[:number]), self._intervals[number:]
        after, thread_ns = after_cuts(first.cuts), self._thread_time.cut()
        self._record([first], first.end_ns, None, after, series.UNKNOWN, self._agent_ns, self._plain_steps, thread_ns)
        self.is_plain, self._plain_steps, self._plain_intervals = False, 0, 0
        self._end_ns, self._agent_ns, self._agent_before_ns = first.end_ns, 0, 0

    def end_step(self, *, divided: bool = False) -> None:
        """The optimizer has stepped: the step is complete, and the next one begins with DATA.

        divided  another step had ended before, at the last call of :meth:`may_end_step`
        """
        if get_ident() != self.thread and not self.is_training_thread():
            return
        began = self._now()
        thread_ns = self._thread_time.cut()
        self._close(began)
        intervals, self._intervals = self._intervals, []
        steps, was_plain = 1 + self._take_plain_steps(), self.is_plain
        if was_plain:
            intervals = [merged(intervals)]
            if self.breakdown is not None:
                self.breakdown.evaluated()  # an evaluation in one of these steps was not seen
            self._micro_steps = series.UNKNOWN
            self.watched = self.is_plain = False
            self._plain_steps = self._plain_intervals = 0
            if divided:
                steps += 1
                self.step += 1
        elif divided and self._boundary is not None and self._boundary[0] < len(intervals):
            intervals = self._end_first_part(intervals, *self._boundary)
        self._boundary = None
        breakdown = None if self.breakdown is None else self._split(self.breakdown, intervals)
        self.step += 1
        after = self.retention.end_step(intervals) if self.retention is not None else UNKNOWN_AFTER_STEP
        # The time of this call counts for the next step: this step's record is written before the call is over.
        record = self._record(intervals, began, breakdown, after, self._micro_steps, self._agent_ns, steps, thread_ns)
        self._micro_steps = 0
        self.saw_forward = False
        self.phase = DATA
        if self._plan is not None:
            peaks, spent_ns, took_ns = highest_allocated(intervals), self._agent_ns, began - self._end_ns
            is_detailed = self.watched or not (self._phases or was_plain)
            seen = EndedStep(self.steps_here, steps, is_detailed, was_plain, peaks, spent_ns, took_ns)
            self.is_control_step, self.plain_steps_wanted = self._plan.next_steps(seen)
            self.is_control_step |= self.plain_steps_wanted > 0  # until the hooks make it a plain one
            self.watched = self._phases and not self.is_control_step
        self._end_ns = began
        for ended in self._on_step_ended:
            ended(record)
        self._agent_ns, self._agent_before_ns = self._now() - began, 0

    def _split(
        self, source: BreakdownSource, intervals: list[PhaseInterval]
    ) -> list[tuple[CategoryBytes, CategoryBytes]] | None:
        """Return the step's bytes by category; None from the time on when another thread trains."""
        with self.reads as may_read:
            if may_read:
                return source.end_step(intervals, self._devices)
        source.end()
        self.breakdown = None
        return None

    def _end_first_part(
        self, intervals: list[PhaseInterval], number: int, micro_steps: int, agent_ns: int
    ) -> list[PhaseInterval]:
        """Record these intervals up to a number of them as a step of its own. Returns the others."""
        first, self._end_ns = intervals[:number], intervals[number - 1].end_ns
        self._micro_steps -= micro_steps
        self._agent_ns -= agent_ns
        self.step += 1
        record = self._record(first, self._end_ns, None, after_cuts(first[-1].cuts), micro_steps, agent_ns)
        for ended in self._on_step_ended:
            ended(record)
        return intervals[number:]

    def stays_detailed(self) -> bool:
        """True if a listener needs all hooks in the next step, which becomes a detailed one."""
        needed = self.listener_needs_detail
        if needed and self._plan is not None:
            self._plan.details_needed(self.steps_here)
            self.watched, self.is_control_step = self._phases, False
        return needed

    def _record(
        self,
        intervals: list[PhaseInterval],
        end_ns: int,
        breakdown: list[tuple[CategoryBytes, CategoryBytes]] | None,
        after: AfterStep,
        micro_steps: int,
        agent_ns: int,
        steps: int = 1,
        thread_ns: int = series.UNKNOWN,
    ) -> StepRecord:
        """Store the record of the step that was counted, for whoever takes it."""
        inputs = self.batch.step_ended(), self.batch.beside_before
        rest = self._devices, breakdown, after, *inputs, steps, thread_ns
        record = StepRecord(self.step, end_ns, intervals, micro_steps, self.watched, agent_ns, *rest)
        self.finished.add(record)
        return record

    def mark(self) -> int | None:
        """Read the counters within a phase. Returns the position of the interval that ended; None in an unwatched step."""
        if not self.watched or not self.is_training_thread():
            return None
        began = self._now()
        self._close(began)
        self._agent_ns += self._now() - began
        return len(self._intervals) - 1

    # -- queries ---------------------------------------------------------------------------------------------------

    def cuts(self) -> list[PhaseInterval]:
        """Completed intervals of the running step. Read only; the list grows while the training continues."""
        return self._intervals

    @property
    def micro_steps(self) -> int:
        """Number of backward passes in the running step so far."""
        return self._micro_steps

    def spent(self, nanoseconds: int) -> None:
        """Count time that the agent took on the training thread outside the clock's own calls."""
        self._agent_ns += nanoseconds

    def timed(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function and count its time as the agent's."""
        began = self._now()
        call(*args)
        self._agent_ns += self._now() - began

    def begin_again(self, step: int) -> None:
        """Continue counting at this step, because the run was resumed. Ignored if it is not ahead."""
        if step > self.step:
            by, self.step = step - self.step, step
            self.optimizer_steps.clear()
            self._earlier_steps += by
            for renumbered in self._on_renumbered:
                renumbered(by)

    def _close(self, at_ns: int) -> None:
        if not self.counters and self.find_devices is not None:
            self.find_devices()
        agent_ns = self._agent_ns - self._agent_before_ns
        self._intervals.append(
            PhaseInterval(self.phase, self._since_ns, at_ns, list(map(_cut, self.counters)), agent_ns)
        )
        self._since_ns, self._agent_before_ns = at_ns, self._agent_ns

    def is_training_thread(self, *, loads: bool = False, trains: bool = False) -> bool:
        """True if the calling thread trains. Replicas and helpers that run the same hooks on other threads are ignored.

        loads    The caller only asks for the next batch, as a prefetching thread does; that alone is no training.
        trains   The caller begins the first backward pass. A thread that has only inferred, or has ended, is no training.
        """
        ident = get_ident()
        if ident != self.thread:
            may_change = not loads and (self._has_only(OTHER, DATA) or self._is_silent)
            if trains and not may_change:
                may_change = self._has_only(OTHER, DATA, EVAL) or self.thread not in sys._current_frames()
            if self.thread is not None and not may_change:
                return False
            self.thread = ident
        return True

    def _has_only(self, *phases: int) -> bool:
        """True while the known training thread has done nothing else, such as to ask for batches."""
        seen = {self.phase, *(interval.phase for interval in self._intervals)}
        return not self.step and not self._micro_steps and seen <= {*phases}

    @property
    def _is_silent(self) -> bool:
        return self._now() - self._since_ns >= SILENCE_NS
