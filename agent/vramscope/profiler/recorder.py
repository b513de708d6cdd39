"""Records profiles of single steps: opens and closes torch.profiler at the training's own steps.

A profile costs the training thread about 1 µs an operation while it is open (2 µs with Python stacks) and 8 to 30 µs an
operation when it is closed; outside of profiles there is a comparison a phase and a clock's reading a step.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from vramscope.guard import guarded
from vramscope.memory.allocator_counters import counters_of
from vramscope.memory.peak_counters import share_peak_counters
from vramscope.process.gc_pause import collector_paused
from vramscope.process.notices import Notice
from vramscope.process.torch_compile import is_compiled
from vramscope.profiler.events import mark_beginning
from vramscope.profiler.module_marks import ModuleMarks, names_of
from vramscope.profiler.packing import ProfilePacker
from vramscope.profiler.plan import ProfilePlan, ProfileRequest
from vramscope.profiler.pytorch_profiler import PytorchProfiler
from vramscope.profiler.raw import DeviceCounters, PhaseMark, RawProfile
from vramscope.protocol import series
from vramscope.steps.events import Order, StepListener
from vramscope.transport.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import StepRecord
    from vramscope.transport.ring import Ring

MOST_ALLOCATIONS: Final = 60_000
"""of one profile; with some three operations each, and 1 s of the training's time to close it"""
USERS_PROFILER: Final = "another profiler is at work in this process, so that no profiles are recorded for vramscope"
STEPS_TO_KNOW: Final = 20
"""whose median is what a step takes without a profile"""
OVERDUE_STEPS: Final = 20
OVERDUE_S: Final = 5.0
"""so many times as long as a step, and at least so long: then it is something else that goes on, an evaluation, say"""


class ProfileRecorder(StepListener):
    """One a session. All calls but :meth:`ask` come on the training thread; the clock tells of phases and steps.

    roots           the models, for the names of modules
    other_is_open   whether a window of allocator history is being recorded: never both at once
    """

    order = Order.PROFILE

    def __init__(
        self,
        clock: StepClock,
        ring: Ring,
        *,
        roots: Iterable[torch.nn.Module] = (),
        pace_s: float = 0.2,
        plan: ProfilePlan | None = None,
        other_is_open: Callable[[], bool] = lambda: False,
    ) -> None:
        import torch

        self._clock = clock
        self._ring = ring
        self._roots = roots
        self._plan = plan or ProfilePlan()
        self._other_is_open = other_is_open
        self._switch = PytorchProfiler(self._give_way)
        self._users_profiler = Notice(ring.put, lambda: clock.step, USERS_PROFILER)
        self._uploads = Uploads(ring, lambda: clock.step, pace_s=pace_s, name="profiles")
        self._packing = ProfilePacker(self._plan.ended)
        self._asks_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._device_name: Callable[[int], str] = torch.cuda.get_device_name
        self.window: _OpenProfile | None = None
        """that is being recorded"""
        self._steps_s: deque[float] = deque(maxlen=STEPS_TO_KNOW)
        self._step_ended_s = 0.0
        self._off = False

    @property
    def is_open(self) -> bool:
        """A profile is being recorded."""
        return self.window is not None

    @guarded("recording profiles")
    def begin(self) -> None:
        """Listen to the clock."""
        self._switch.listen()
        self._clock.subscribe(self)

    def ask(self, *, trace: bool = False) -> None:
        """Somebody would like a profile of the next steps. From any thread."""
        self._plan.ask(trace=trace)

    def close(self) -> None:
        """The session ends: a profile that holds a whole step is closed, any other given up; all go to the ring. At most 2 s."""
        self._clock.unsubscribe(self)
        self._end_open_window()
        self._switch.release()
        self._uploads.close(2.0)

    @guarded("recording profiles")
    def before_fork(self) -> None:
        """The child would go on profiling, for as long as it lives: a profile that this thread has opened is put off."""
        if self.window is not None and self._switch.belongs_to_us:
            with self._all_or_nothing():
                self._put_off()

    def after_fork_in_child(self) -> None:
        """The child records nothing, and does not touch what is open."""
        window, self.window = self.window, None
        self._off = True
        self._clock.unsubscribe(self)
        if window is not None and window.modules is not None:
            window.modules.forget()
        self._switch.forget()
        self._uploads.after_fork_in_child()

    # -- what the clock tells ------------------------------------------------------------------------------------------

    def phase_entered(self) -> None:
        """A phase begins; marked within a profile."""
        if self.window is not None:
            self._mark()

    def phase_continued(self) -> None:
        """Another forward within a phase of a profile: an evaluation, say, which has no end in sight."""
        if self.window is not None and self._switch.belongs_to_us:
            self._keep_bounds_within_a_phase()

    def step_ended(self, step: StepRecord) -> None:
        """A step is over."""
        if self._off:
            return
        now_s = time.perf_counter()
        took_s, self._step_ended_s = now_s - self._step_ended_s, now_s
        if self.window is None:
            self._steps_s.append(took_s)
            if self._plan.may_wish(self._clock.step):
                self._begin_if_wished()
        else:
            self.window.steps_s.append(took_s)
            self._step_in()

    # -- a profile -----------------------------------------------------------------------------------------------------

    @guarded("recording profiles")
    def _begin_if_wished(self) -> None:
        clock = self._clock
        # (the first step measured lasted from attach on)
        step_s = statistics.median(self._steps_s) if len(self._steps_s) > 1 else 0.0
        wish = self._plan.wish(clock.step, step_s)
        if (
            wish is None
            or clock.is_control_step
            or self._uploads.is_full
            or self._other_is_open()
            or self._is_capturing()
        ):
            return
        if self._switch.is_the_users:
            self._plan.missed()
            self._users_profiler.report()
            return
        with self._all_or_nothing():
            self._open(wish, step_s or None)

    def _open(self, wish: ProfileRequest, step_s: float | None) -> None:
        began = time.perf_counter()
        self._plan.begun(wish)
        clock = self._clock
        raw = RawProfile(
            wish=wish,
            first_step=clock.step + 1,
            last_step=clock.step + 1,
            steps=0,
            start_ns=0,
            counters=[],
            marks=[],
            step_before_s=step_s,
        )
        self.window = window = _OpenProfile(raw)
        if not wish.stacks and not is_compiled():
            window.modules = ModuleMarks()
            window.modules.begin()
        elif not wish.stacks:
            raw.notes.append("torch.compile is at work: modules are left alone, and told only in a profile with stacks")
        self._switch.open(stacks=wish.stacks, shapes=wish.shapes, memory=bool(clock.counters))
        raw.counters = [
            DeviceCounters(counter.device, self._device_name(counter.device), self._read(counter.device))
            for counter in clock.counters
        ]
        mark_beginning()
        raw.start_ns = time.time_ns()
        raw.marks.append(PhaseMark(raw.start_ns, clock.step + 1, clock.phase if clock.watched else series.UNKNOWN))
        raw.opening_s = time.perf_counter() - began
        self._step_ended_s = time.perf_counter()

    @guarded("recording profiles")
    def _mark(self) -> None:
        window, clock = self.window, self._clock
        if window is None:
            return
        with self._all_or_nothing():
            if self._is_capturing():
                self._give_up()  # a graph's allocations are made once: no part of what a step does
                return
            window.raw.marks.append(
                PhaseMark(time.time_ns(), clock.step + 1, clock.phase if clock.watched else series.UNKNOWN)
            )
            self._keep_bounds(window)

    @guarded("recording profiles")
    def _keep_bounds_within_a_phase(self) -> None:
        if self.window is not None:
            with self._all_or_nothing():
                self._keep_bounds(self.window)

    def _keep_bounds(self, window: _OpenProfile) -> None:
        if window.is_overdue:
            self._put_off()
        elif self._allocations(window) > MOST_ALLOCATIONS:
            self._close(
                f"closed in the middle of a step: it allocates more than {MOST_ALLOCATIONS} times", in_step=True
            )

    @guarded("recording profiles")
    def _step_in(self) -> None:
        window = self.window
        assert window is not None
        with self._all_or_nothing():
            window.raw.steps += 1
            if window.raw.steps >= window.raw.wish.steps:
                self._close(in_step=False)
            else:
                self._mark()

    @guarded("recording profiles")
    def _end_open_window(self) -> None:
        window = self.window
        if window is None:
            return
        with self._all_or_nothing():
            if window.raw.steps and self._switch.belongs_to_us:
                self._close("the session ended in it", in_step=bool(self._clock.cuts()))
            else:
                self._give_up()

    def _close(self, note: str = "", *, in_step: bool) -> None:
        """``in_step``: within a step, which is then the last one in it; else at the end of one."""
        window = self.window
        assert window is not None
        began = time.perf_counter()
        raw = window.raw
        raw.end_ns = time.time_ns()
        for counters in raw.counters:
            counters.end = self._read(counters.device)
        if window.modules is not None:
            window.modules.end()
        with collector_paused():
            raw.profiler = self._switch.close()
        self.window = None
        if window.modules is not None or raw.wish.stacks:
            raw.modules = names_of(self._roots, {} if window.modules is None else window.modules.kinds)
        raw.last_step = max(raw.first_step, self._clock.step + in_step)
        if note:
            raw.notes.append(note)
        raw.step_within_s = statistics.median(window.steps_s) if window.steps_s else None
        raw.closing_s = time.perf_counter() - began
        self._step_ended_s = time.perf_counter()
        self._uploads.put(partial(self._packing.artifacts, raw))

    def _give_up(self) -> None:
        """Leave everything as it was before the profile."""
        window, self.window = self.window, None
        try:
            if window is not None and window.modules is not None:
                window.modules.end()
        finally:
            self._switch.leave()

    def _put_off(self) -> None:
        """What goes on now is no step's work: leave everything as it was, and begin anew when a step has ended."""
        window = self.window
        self._give_up()
        if window is not None:
            self._plan.again(window.raw.wish)

    def _give_way(self) -> None:
        self._give_up()
        self._plan.missed()
        self._users_profiler.report()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A fault in here ends recording for good, and nothing is left on."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self._off = True
                self._give_up()

    def _is_capturing(self) -> bool:
        # (asked without a device, PyTorch raises)
        return bool(self._clock.counters) and self._asks_capturing()

    def _read(self, device: int) -> dict[str, int]:
        return counters_of(share_peak_counters().read(device))

    def _allocations(self, window: _OpenProfile) -> int:
        return sum(
            self._read(counters.device)["allocation.all.allocated"] - counters.start["allocation.all.allocated"]
            for counters in window.raw.counters
        )


class _OpenProfile:
    """A profile that is being recorded."""

    def __init__(self, raw: RawProfile) -> None:
        self.raw = raw
        self.modules: ModuleMarks | None = None
        self.steps_s: list[float] = []
        self._began_s = time.perf_counter()

    @property
    def is_overdue(self) -> bool:
        """No step takes that long."""
        step_s = self.raw.step_before_s or 0.0
        return time.perf_counter() - self._began_s > max(OVERDUE_S, OVERDUE_STEPS * step_s)
