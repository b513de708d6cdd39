"""Knows which step and which phase the training is in, and cuts the peak counters where one ends.

The training thread calls :meth:`StepClock.enter` and :meth:`StepClock.end_step` from hooks; both only read the
allocator, note, and return. The sampler's thread takes the finished steps with :meth:`StepClock.take` and does the rest.

A phase lasts until the next one begins: *forward* includes the loss, *data* all from the end of a step to the next forward
(loading, copying, zero_grad). *Backward* ends when it returns; what is done between it and the next phase is *other*: clipping,
unscaling, gradients reduced by hand, copies of weights, the making of the next micro-batch where no DataLoader is asked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.memory.peak_counters import Interval, PeakCounter
from vramscope.protocol import messages, series
from vramscope.steps.control_steps import CalmSteps
from vramscope.steps.records import NOT_KNOWN, FinishedStep

if TYPE_CHECKING:
    from random import Random

    from vramscope.steps.events import Anatomy, Graphs, Losses, Profiles, TechniqueListener, Windows

OTHER, DATA, FORWARD, BACKWARD, OPTIMIZER, EVAL = range(len(series.PHASES))

SAME_INSTANT_NS = 50_000
"""so soon behind a backward nothing has run yet: the phase that begins then begins where the backward ended, without a reading"""

SILENCE_NS = 10_000_000_000
"""after that long without a word from the training thread, another one may take its place"""

_MOST_FINISHED = 20_000
_cut = methodcaller("cut")


class Stretch(NamedTuple):
    """One stay in one phase."""

    phase: int
    start_ns: int
    end_ns: int
    cuts: list[Interval]
    """one a watched device, in the order of StepClock.counters"""
    agent_ns: int = 0
    """of the time between, that the agent itself took"""

    @property
    def own_ns(self) -> int:
        """What it would have lasted without us."""
        return max(0, self.end_ns - self.start_ns - self.agent_ns)


class StepClock:
    """Step and phase of one training.

    phases   False: only steps are cut (one reading a step), phases stay unknown
    in_every_step   phases are read in every step, whatever it costs; what watching costs cannot be measured then
    now      nanoseconds, rising
    random   as for CalmSteps
    """

    def __init__(
        self,
        *,
        phases: bool = True,
        in_every_step: bool = False,
        now: Callable[[], int] = time.perf_counter_ns,
        random: Random | None = None,
    ) -> None:
        self._now = now
        self.step = 0
        """optimizer steps finished"""
        self.phase = OTHER
        self.watched = phases
        """its phases are read"""
        self.calm = False
        """this step is left alone, to measure what watching costs"""
        self._calm_steps = CalmSteps(random) if phases and not in_every_step else None
        self.counters: list[PeakCounter] = []
        self.anatomy: Anatomy | None = None
        self.graphs: Graphs | None = None
        self.recorder: Windows | None = None
        self.profiler: Profiles | None = None
        self.techniques: TechniqueListener | None = None
        self.loss: Losses | None = None
        self.look_for_devices: Callable[[], None] | None = None
        """called at marks while no device is watched, so that the first step with CUDA is exact; costs 0.3 µs"""
        self._devices: tuple[int, ...] = ()
        self.thread: int | None = None
        """the thread that was heard to train; None: none yet"""
        self._stretches: list[Stretch] = []
        self._since_ns = self._entered_ns = now()
        self._micro_steps = 0
        self.rows: int | None = None
        """of the batch whose forward began last"""
        self.given: tuple[int, tuple[int, ...]] | None = None
        """root whose forward with gradients began last (its id, compared and never used), and the shape of its first argument"""
        self.largest: dict[int, tuple[int, ...]] = {}
        """by root, the largest such shape of this step"""
        self.largest_before: dict[int, tuple[int, ...]] = {}
        """and of the step before"""
        self.forwards = 0
        """of one model, that began one behind the other with no backward between"""
        self.evaluates = False
        """the forward that began last was of a model in evaluation mode, behind a step of training, with gradients on"""
        self._agent_ns = self._agent_before_ns = 0
        """in this step, and of that before the stretch that runs"""
        self._end_ns = self._since_ns
        self._finished: deque[FinishedStep] = deque(maxlen=_MOST_FINISHED)
        self.newest: FinishedStep | None = None
        """the last one that was finished"""
        self.lost_steps = 0

    def watch(self, counter: PeakCounter) -> None:
        """From now on each cut reads this device too."""
        if all(counter.device != known.device for known in self.counters):
            # New objects, not appends: a hook that runs on the training thread sees the old pair or the new one.
            self.counters, self._devices = [*self.counters, counter], (*self._devices, counter.device)

    def enter(self, phase: int) -> None:
        """The training enters a phase. Nothing happens where it already is in it, or in a step that is left alone.

        Cost: one cut a device (about 13 µs), 0.3 µs in an unwatched step and right behind a backward.
        """
        if phase == BACKWARD:
            self._micro_steps += 1
        if phase == self.phase or not self.watched or not self.is_training_thread():
            if phase == EVAL and not self.watched and self.anatomy is not None:
                self.anatomy.evaluated()
            if self.profiler is not None and self.profiler.window is not None:
                self.profiler.goes_on()
            return
        began = self._now()
        if self.phase != OTHER or not self._stretches or began - self._entered_ns > SAME_INSTANT_NS:
            self._close(began)
        self.phase = phase
        if self.anatomy is not None:
            self.anatomy.begin(phase, self._devices, self._stretches[-1].cuts)
        if self.recorder is not None:
            self.recorder.entered()
        if self.profiler is not None and self.profiler.window is not None:
            self.profiler.entered()
        self._entered_ns = self._now()
        self._agent_ns += self._entered_ns - began

    def end_step(self) -> None:
        """The optimizer has stepped: the step is complete, and the next begins with *data*."""
        if get_ident() != self.thread and not self.is_training_thread():
            return
        began = self._now()
        self._close(began)
        stretches, self._stretches = self._stretches, []
        splits = self.anatomy.end_step(stretches, self._devices) if self.anatomy is not None else None
        self.step += 1
        held = self.graphs.end_step(stretches) if self.graphs is not None else NOT_KNOWN
        if len(self._finished) == _MOST_FINISHED:
            self.lost_steps += 1
        # What this call itself takes is counted in the next step: this one's row is written before it is over.
        self.newest = FinishedStep(
            self.step,
            began,
            stretches,
            self._micro_steps,
            self.watched,
            self._agent_ns,
            self._devices,
            splits,
            held,
            self.largest,
        )
        self._finished.append(self.newest)
        backwards, self._micro_steps = self._micro_steps, 0
        self.largest, self.largest_before = {}, self.largest
        self.phase = DATA
        if self._calm_steps is not None:
            self.calm = self._calm_steps.next_is_calm(self.step, self.watched, self._agent_ns, began - self._end_ns)
            self.watched = not self.calm
        self._end_ns = began
        if self.recorder is not None:
            self.recorder.end_step(stretches)
        if self.profiler is not None:
            self.profiler.end_step(stretches)
        if self.techniques is not None:
            self.techniques.end_step(backwards)
        if self.loss is not None:
            self.loss.end_step(self.step, began)
        self._agent_ns, self._agent_before_ns = self._now() - began, 0

    def mark(self) -> int | None:
        """Cut within a phase, at a moment that matters; the position of the stretch that ended. None: this step is left alone."""
        if not self.watched or not self.is_training_thread():
            return None
        began = self._now()
        self._close(began)
        self._agent_ns += self._now() - began
        return len(self._stretches) - 1

    def tails(self) -> list[messages.Tail]:
        """The peaks of what came after the last step, by device. From any thread, at the end."""
        if not self.counters and self.look_for_devices is not None:
            self.look_for_devices()
        stretches = list(self._stretches)
        found = []
        for position, counter in enumerate(self.counters):
            cuts = [(one.phase, one.cuts[position]) for one in stretches if position < len(one.cuts)]
            cuts.append((self.phase, counter.so_far()))
            phase, _ = max(cuts, key=lambda one: one[1].peak_allocated_bytes)
            in_step = phase in (FORWARD, BACKWARD, OPTIMIZER) if self.watched else self._micro_steps > 0
            found.append(
                messages.Tail(
                    device=counter.device,
                    peak_allocated_bytes=max(cut.peak_allocated_bytes for _, cut in cuts),
                    peak_reserved_bytes=max(cut.peak_reserved_bytes for _, cut in cuts),
                    phase=series.PHASES[phase] if self.watched else None,
                    step=self.step + 1 if in_step else None,
                )
            )
        return found

    def cuts(self) -> list[Stretch]:
        """The stretches of the step that runs, as far as they are over. To be read only; it grows while the training goes on."""
        return self._stretches

    @property
    def micro_steps(self) -> int:
        """Backward passes of the step that runs, so far."""
        return self._micro_steps

    def spent(self, nanoseconds: int) -> None:
        """Time that the agent took on the training thread outside of the clock's own calls."""
        self._agent_ns += nanoseconds

    def timed(self, listener: Callable[..., None], *args: Any) -> None:
        """Call a listener; what it takes is the agent's time."""
        began = self._now()
        listener(*args)
        self._agent_ns += self._now() - began

    def take(self) -> list[FinishedStep]:
        """The steps finished since the last call, oldest first. For the sampler's thread."""
        steps = []
        while self._finished:
            steps.append(self._finished.popleft())
        return steps

    def untaken(self) -> list[FinishedStep]:
        """The steps that nobody has taken yet, oldest first. From any thread; they stay."""
        return list(self._finished)

    def begin_again(self, step: int) -> None:
        """A run that is resumed goes on counting where it was; what is recorded already belongs to the step that comes."""
        if step > self.step:
            by, self.step = step - self.step, step
            if self.recorder is not None:
                self.recorder.renumbered(by)

    def _close(self, at_ns: int) -> None:
        if not self.counters and self.look_for_devices is not None:
            self.look_for_devices()
        agent_ns = self._agent_ns - self._agent_before_ns
        self._stretches.append(Stretch(self.phase, self._since_ns, at_ns, list(map(_cut, self.counters)), agent_ns))
        self._since_ns, self._agent_before_ns = at_ns, self._agent_ns

    def is_training_thread(self, *, loads: bool = False) -> bool:
        """Only one thread trains; replicas and helpers that run the same hooks elsewhere are not heard.

        loads   it is asked by a thread that only wants the next batch: as a prefetcher's does, which trains nothing
        """
        ident = get_ident()
        if ident != self.thread:
            if self.thread is not None and (loads or not (self._only_loads or self._is_silent)):
                return False
            self.thread = ident
        return True

    @property
    def _only_loads(self) -> bool:
        """Nothing was heard yet of the thread that is taken for the training's, but that it asked for batches."""
        phases = {self.phase, *(stretch.phase for stretch in self._stretches)}
        return not self.step and not self._micro_steps and phases <= {OTHER, DATA}

    @property
    def _is_silent(self) -> bool:
        return self._now() - self._since_ns >= SILENCE_NS
