"""Records profiles of single steps: opens and closes torch.profiler at the training's steps.

While it is open, a profile costs the training thread about 1 µs an operation (2 µs with Python stacks), and 8 to 30 µs an
operation when it is closed. Outside of profiles it costs one comparison a phase and one reading of the clock a step.
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

MAX_ALLOCATIONS: Final = 60_000
"""Maximum number of allocations of one profile: with about three operations each, closing takes 1 s of the training's time."""
USERS_PROFILER: Final = "another profiler is active in this process, so vramscope records no profiles"
MEDIAN_STEPS: Final = 20
"""Number of steps whose median is the duration of a step without a profile."""
OVERDUE_STEPS: Final = 20
OVERDUE_S: Final = 5.0
"""A profile is overdue after this many seconds and OVERDUE_STEPS times a step: then something else runs, such as an
evaluation."""


class ProfileRecorder(StepListener):
    """Records profiles, one recorder a session. All calls except :meth:`ask` are on the training thread.

    roots           the models, for the names of modules
    other_is_open   returns whether a window of allocator history is being recorded, because only one of both may be open
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
        self._switch = PytorchProfiler(self._yield_to_user)
        self._users_profiler = Notice(ring.put, lambda: clock.step, USERS_PROFILER)
        self._uploads = Uploads(ring, lambda: clock.step, pace_s=pace_s, name="profiles")
        self._packing = ProfilePacker(self._plan.ended)
        self._current_stream_is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._device_name: Callable[[int], str] = torch.cuda.get_device_name
        self.window: _OpenProfile | None = None
        """The profile that is being recorded."""
        self._steps_s: deque[float] = deque(maxlen=MEDIAN_STEPS)
        self._step_ended_s = 0.0
        self._off = False

    @property
    def is_open(self) -> bool:
        """True while a profile is being recorded."""
        return self.window is not None

    @guarded("recording profiles")
    def begin(self) -> None:
        """Subscribe to the clock."""
        self._switch.listen()
        self._clock.subscribe(self)

    def ask(self, *, trace: bool = False) -> None:
        """Request a profile of the next steps. From any thread."""
        self._plan.ask(trace=trace)

    def close(self) -> None:
        """End the session: a profile with a complete step is closed, any other dropped; all go to the ring. At most 2 s."""
        self._clock.unsubscribe(self)
        self._end_open_window()
        self._switch.release()
        self._uploads.close(2.0)

    @guarded("recording profiles")
    def before_fork(self) -> None:
        """Postpone a profile that this thread has opened: the child would profile for as long as it lives."""
        if self.window is not None and self._switch.is_ours_on_this_thread:
            with self._disable_on_error():
                self._postpone()

    def after_fork_in_child(self) -> None:
        """Stop recording in the child, and change nothing that is open."""
        window, self.window = self.window, None
        self._off = True
        self._clock.unsubscribe(self)
        if window is not None and window.modules is not None:
            window.modules.forget()
        self._switch.forget()
        self._uploads.after_fork_in_child()

    # -- events of the clock --------------------------------------------------------------------------------------------

    def phase_entered(self) -> None:
        """Handle the begin of a phase: set a mark within a profile."""
        if self.window is not None:
            self._mark()

    def phase_continued(self) -> None:
        """Handle another forward within a phase of a profile: an evaluation, say, whose end is not known."""
        if self.window is not None and self._switch.is_ours_on_this_thread:
            self._check_limits_within_a_phase()

    @property
    def needs_detail(self) -> bool:
        """True while steps are being profiled."""
        return self.window is not None

    def step_ended(self, step: StepRecord) -> None:
        """Handle the end of a step."""
        if self._off:
            return
        now_s = time.perf_counter()
        took_s, self._step_ended_s = (now_s - self._step_ended_s) / step.steps, now_s
        if self.window is None:
            self._steps_s.append(took_s)
            if self._plan.is_due(self._clock.step):
                self._begin_if_due()
        else:
            self.window.steps_s.append(took_s)
            self._end_step_in_profile()

    # -- a profile -----------------------------------------------------------------------------------------------------

    @guarded("recording profiles")
    def _begin_if_due(self) -> None:
        clock = self._clock
        # the first measured step begins at attach
        step_s = statistics.median(self._steps_s) if len(self._steps_s) > 1 else 0.0
        request = self._plan.next_request(clock.step, step_s)
        if (
            request is None
            or clock.is_control_step
            or self._uploads.is_full
            or self._other_is_open()
            or self._is_capturing()
        ):
            return
        if self._switch.is_users:
            self._plan.missed()
            self._users_profiler.report()
            return
        with self._disable_on_error():
            self._open(request, step_s or None)

    def _open(self, request: ProfileRequest, step_s: float | None) -> None:
        start_s = time.perf_counter()
        self._plan.mark_started(request)
        clock = self._clock
        raw = RawProfile(
            request=request,
            first_step=clock.step + 1,
            last_step=clock.step + 1,
            steps=0,
            start_ns=0,
            counters=[],
            marks=[],
            step_before_s=step_s,
        )
        self.window = window = _OpenProfile(raw)
        if not request.stacks and not is_compiled():
            window.modules = ModuleMarks()
            window.modules.begin()
        elif not request.stacks:
            raw.notes.append("torch.compile is active: modules are recorded only in a profile with stacks")
        self._switch.open(stacks=request.stacks, shapes=request.shapes, memory=bool(clock.counters))
        raw.counters = [
            DeviceCounters(counter.device, self._device_name(counter.device), self._read(counter.device))
            for counter in clock.counters
        ]
        mark_beginning()
        raw.start_ns = time.time_ns()
        raw.marks.append(PhaseMark(raw.start_ns, clock.step + 1, clock.phase if clock.watched else series.UNKNOWN))
        raw.opening_s = time.perf_counter() - start_s
        self._step_ended_s = time.perf_counter()

    @guarded("recording profiles")
    def _mark(self) -> None:
        window, clock = self.window, self._clock
        if window is None:
            return
        with self._disable_on_error():
            if self._is_capturing():
                self._restore()  # a graph's allocations are made once: no part of a step
                return
            window.raw.marks.append(
                PhaseMark(time.time_ns(), clock.step + 1, clock.phase if clock.watched else series.UNKNOWN)
            )
            self._check_limits(window)

    @guarded("recording profiles")
    def _check_limits_within_a_phase(self) -> None:
        if self.window is not None:
            with self._disable_on_error():
                self._check_limits(self.window)

    def _check_limits(self, window: _OpenProfile) -> None:
        if window.is_overdue:
            self._postpone()
        elif self._allocations(window) > MAX_ALLOCATIONS:
            self._close(f"closed in the middle of a step: more than {MAX_ALLOCATIONS} allocations", in_step=True)

    @guarded("recording profiles")
    def _end_step_in_profile(self) -> None:
        window = self.window
        assert window is not None
        with self._disable_on_error():
            window.raw.steps += 1
            if window.raw.steps >= window.raw.request.steps:
                self._close(in_step=False)
            else:
                self._mark()

    @guarded("recording profiles")
    def _end_open_window(self) -> None:
        window = self.window
        if window is None:
            return
        with self._disable_on_error():
            if window.raw.steps and self._switch.is_ours_on_this_thread:
                self._close("ended by the end of the session", in_step=bool(self._clock.cuts()))
            else:
                self._restore()

    def _close(self, note: str = "", *, in_step: bool) -> None:
        """Close the profile. ``in_step``: within a step, which is then its last one; else at the end of one."""
        window = self.window
        assert window is not None
        start_s = time.perf_counter()
        raw = window.raw
        raw.end_ns = time.time_ns()
        for counters in raw.counters:
            counters.end = self._read(counters.device)
        if window.modules is not None:
            window.modules.end()
        with collector_paused():
            raw.profiler = self._switch.close()
        self.window = None
        if window.modules is not None or raw.request.stacks:
            raw.modules = names_of(self._roots, {} if window.modules is None else window.modules.kinds)
        raw.last_step = max(raw.first_step, self._clock.step + in_step)
        if note:
            raw.notes.append(note)
        raw.step_within_s = statistics.median(window.steps_s) if window.steps_s else None
        raw.closing_s = time.perf_counter() - start_s
        self._step_ended_s = time.perf_counter()
        self._uploads.put(partial(self._packing.artifacts, raw))

    def _restore(self) -> None:
        """Restore everything as it was before the profile."""
        window, self.window = self.window, None
        try:
            if window is not None and window.modules is not None:
                window.modules.end()
        finally:
            self._switch.leave()

    def _postpone(self) -> None:
        """Restore everything, because what runs now is not a step, and begin again after the next step."""
        window = self.window
        self._restore()
        if window is not None:
            self._plan.again(window.raw.request)

    def _yield_to_user(self) -> None:
        self._restore()
        self._plan.missed()
        self._users_profiler.report()

    @contextmanager
    def _disable_on_error(self) -> Iterator[None]:
        """Context in which an error ends recording for good and restores everything."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self._off = True
                self._restore()

    def _is_capturing(self) -> bool:
        # PyTorch raises without a device
        return bool(self._clock.counters) and self._current_stream_is_capturing()

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
        self._start_s = time.perf_counter()

    @property
    def is_overdue(self) -> bool:
        """True if the profile has been open for longer than a step can take."""
        step_s = self.raw.step_before_s or 0.0
        return time.perf_counter() - self._start_s > max(OVERDUE_S, OVERDUE_STEPS * step_s)
