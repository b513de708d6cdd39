"""Records windows of allocator history: opens and closes them at the training's steps, and passes them on to be packed.

A window costs the training thread a switch, a snapshot without traces, about 1 µs an event, and one snapshot at its end (0.4 to
1.2 µs an event). Outside of windows there is one comparison a phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory import deepspeed_zero
from vramscope.memory.scanned_leak import ScannedLeak
from vramscope.memory.variable_contents import NOTHING
from vramscope.process.identity import random_id
from vramscope.process.notices import Notice
from vramscope.protocol import series
from vramscope.recording.address_owners import Owners
from vramscope.recording.counters import AllocatorReader
from vramscope.recording.event_metadata import TAG, EventMetadata
from vramscope.recording.first_forward import FirstForward
from vramscope.recording.leaked_addresses import LeakedAddresses
from vramscope.recording.packing import WindowPacker
from vramscope.recording.plan import LEAK, WindowPlan, WindowRequest
from vramscope.recording.pytorch_history import PytorchHistory
from vramscope.recording.raw_window import Mark, RawWindow
from vramscope.recording.untracked_models import InVariables, UntrackedModels
from vramscope.recording.user_history import window_of_history
from vramscope.recording.window_state import NO_WORK, DisableOnError, OpenWindow, highest_peaks
from vramscope.recording.without_training import WithoutTraining
from vramscope.steps.events import Order, StepListener
from vramscope.steps.phase import OPTIMIZER
from vramscope.transport.uploads import Uploads

if TYPE_CHECKING:
    import torch

    from vramscope.protocol.window import Window
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval, StepRecord
    from vramscope.transport.ring import Ring

MAX_EVENTS: Final = 120_000
"""Maximum number of events of one window: 24 MB of host memory, and 0.1 s to read them."""
CLOSING_SHARE: Final = 0.8
"""Part of these at which a window is closed early: the rest is for the events of the next phase."""
USERS_HISTORY: Final = "this process records its own memory history, so vramscope does not"


class WindowRecorder(StepListener):
    """Records windows, one recorder a session. All calls except :meth:`ask` are on the training thread.

    roots, optimizers   for the names of modules, their tensors and their state
    on_window       called on the agent's own thread with each packed window
    other_is_open   returns whether a profile is being recorded, because only one of both may be open
    in_variables    as in UntrackedModels
    """

    order = Order.RECORDING

    def __init__(
        self,
        clock: StepClock,
        ring: Ring,
        *,
        roots: Collection[torch.nn.Module] = (),
        optimizers: Collection[torch.optim.Optimizer] = (),
        pace_s: float = 0.2,
        on_window: Callable[[Window], None] | None = None,
        plan: WindowPlan | None = None,
        most_events: int = MAX_EVENTS,
        other_is_open: Callable[[], bool] = lambda: False,
        in_variables: InVariables = lambda _: NOTHING,
    ) -> None:
        import torch

        self._torch = torch
        self._clock = clock
        self._ring = ring
        self._roots = roots
        self._plan = plan or WindowPlan()
        self._most_events, self._limit = most_events, f"limit of {most_events} events"
        self._other_is_open = other_is_open
        self._history = PytorchHistory(
            self._yield_to_user,
            lambda: self._noted(lambda raw: raw.settings_changed),
            lambda: self._noted(lambda raw: raw.emptied),
        )
        self._users_history = Notice(ring.put, lambda: clock.step, USERS_HISTORY)
        self._uploads = Uploads(ring, lambda: clock.step, pace_s=pace_s, name="windows")
        self._packing = WindowPacker(on_window, self._plan.ended)
        self._metadata = EventMetadata()
        self._is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
        self._reader = AllocatorReader()
        self.window: OpenWindow | None = None
        """The window that is being recorded."""
        self._off = False
        self._first_call = FirstForward(clock, self._forward_begins)
        self._untracked_models = UntrackedModels(roots, optimizers, in_variables)
        self._all_or_nothing = DisableOnError(self._failed)

    @property
    def is_open(self) -> bool:
        """True while a window is being recorded."""
        return self.window is not None

    needs_detail = is_open

    @guarded("recording windows")
    def begin(self) -> None:
        """Subscribe to the clock. The first window begins at once if CUDA is initialized, else with it."""
        self._history.listen()
        self._clock.subscribe(WithoutTraining(self._clock, self._drop_in_inference, self._plan.training_begins))
        self._clock.subscribe(self)
        self._begin_if_due()
        if self.window is None and self._torch.cuda.is_initialized():
            self._untracked_models.sweep()  # now rather than in a step
        self._first_call.listen()

    def ask(self) -> None:
        """Request a window of the next steps. From any thread."""
        self._plan.ask()

    def leak_found(self) -> None:
        """Request a window for a new leak, to predict the effect of its fix."""
        self._plan.leak_found()

    def close(self) -> None:
        """End the session: an open window is closed, and all windows go to the ring. At most 2 s."""
        self._first_call.end()
        self._clock.unsubscribe(self)
        self._end_open_window()
        self._history.release()
        self._uploads.close(2.0)

    def after_fork_in_child(self) -> None:
        """Stop recording in the child, and change nothing of CUDA's."""
        window, self.window = self.window, None
        self._off = True
        self._first_call.end()
        self._clock.unsubscribe(self)
        if window is not None and window.modules is not None:
            window.modules.end()
        self._history.forget()
        self._uploads.after_fork_in_child()

    def phase_entered(self) -> None:
        """Handle the begin of a phase; its step's counters have just been read."""
        if self.window is not None:
            self._mark()
        elif self._clock.step == 0 and not self._off:
            self._begin_if_due()  # CUDA may have been initialized after attach

    def phase_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Handle a call of the outermost module with these arguments, at the begin of a phase."""
        if (window := self.window) is not None:
            window.timed(window.owners.inputs, len(window.raw.marks) - 1, args, kwargs)

    @property
    def asks_who_holds(self) -> bool:
        """True if a window is open that is long enough for two scans."""
        return self.window is not None and self.window.request.steps > 1

    def held(self, seen: Iterable[ScannedLeak]) -> None:
        """Handle the end of a scan at a step's boundary, with all known leaks."""
        self._mark()
        window = self.window
        if window is not None and window.raw.held is not None:
            window.raw.held.scan(len(window.raw.marks) - 1, seen)

    def needed(self, addresses: Iterable[int]) -> None:
        """Handle the begin of a backward, for which these addresses are saved."""
        self._mark()
        window = self.window
        if window is not None and window.raw.held is not None:
            window.raw.held.needed(len(window.raw.marks) - 1, addresses)

    def step_ended(self, step: StepRecord) -> None:
        """Handle the end of a step."""
        self._first_call.end()
        if self._off:
            return
        if (window := self.window) is None:
            self._begin_if_due(step.intervals)
        else:
            self._end_step_in_window(window, step.intervals)

    @guarded("recording windows")
    def steps_renumbered(self, by: int) -> None:
        """Raise the numbers of steps, because a run was resumed."""
        if self.window is not None:
            self.window.renumber(by)

    def _noted(self, marks: Callable[[RawWindow], list[int]]) -> None:
        """Set a mark, and add its number to a list of the window. Changes of other threads get no mark."""
        if (window := self.window) is not None and get_ident() == window.thread:
            self._mark(notes=False)
            if self.window is window:  # otherwise it has just been closed
                marks(window.raw).append(len(window.raw.marks) - 1)

    # -- a window ------------------------------------------------------------------------------------------------------

    @guarded("recording windows")
    def _begin_if_due(self, ended: Sequence[PhaseInterval] = ()) -> None:
        """Begin a window if one is due. ``ended``: intervals of a step whose peaks the plan has not seen."""
        peaks = highest_peaks(ended)
        if peaks[0] >= 0:
            self._plan.step_ended(self._clock.step, *peaks)
        request = self._plan.next_request()
        if (
            request is None
            or self._off
            or not self._clock.counters
            or self._clock.is_control_step
            or self._uploads.is_full
            or self._is_capturing()
            or self._other_is_open()
        ):
            return  # retry at the next phase
        if self._history.is_users:
            self._plan.missed()
            self._users_history.report()
            return
        with self._all_or_nothing:
            self._open(request)

    def _forward_begins(self) -> None:
        if self._clock.phase not in NO_WORK:
            return  # a known model's call began it
        if self.window is None:
            self._begin_if_due()
        else:
            self._mark()
        if self.window is not None:
            self.window.name_forward()

    def _open(self, request: WindowRequest) -> None:
        start_ns = time.perf_counter_ns()
        clock = self._clock
        self._plan.mark_started(request)
        self._untracked_models.window_begins()
        metadata = self._metadata.users_text()
        self._history.begin(self._most_events, frees=request.frees)
        start = self._reader.snapshot()
        facts = [self._reader.facts(counter.device) for counter in clock.counters]
        raw = RawWindow(
            reason=request.reason,
            first_step=clock.step + 1,
            last_step=clock.step + 1,
            most_events=self._most_events,
            tag=TAG,
            start=start,
            end={},
            facts=facts,
            marks=[],
            modules=[],
            notes=[] if self._reader.knows_limits else ["this torch does not report whether a memory limit is set"],
        )
        raw.owners = owners = Owners(self._roots, self._untracked_models)
        raw.held = LeakedAddresses()
        self.window = window = OpenWindow(request, raw, metadata, len(clock.cuts()), owners)
        window.modules = self._metadata.begin_module_tags()
        self._mark_in(window)
        owners.all(0)
        self._untracked_models.forget_variables()  # where an error ended the line before
        window.spent_ns = time.perf_counter_ns() - start_ns

    @guarded("recording windows")
    def _mark(self, *, notes: bool = True) -> None:
        """Set a mark. ``notes``: also record owners."""
        window = self.window
        if window is not None:
            with self._all_or_nothing:
                if self._is_capturing():
                    # Its allocations belong to the graph and are made once: no part of the requests of a step.
                    self._restore()
                else:
                    self._mark_in(window, notes=notes)

    def _mark_in(self, window: OpenWindow, *, notes: bool = True) -> None:
        clock, raw = self._clock, window.raw
        number = len(raw.marks)
        raw.marks.append(Mark(time.time_ns() // 1000, clock.step + 1, clock.phase if clock.watched else series.UNKNOWN))
        prefix = f"{TAG}{number}"
        if window.modules is None:
            self._metadata.set(prefix)
        else:
            window.modules.phase(prefix)
        if not notes:
            return
        if clock.phase == OPTIMIZER and clock.watched:
            window.timed(window.owners.gradients, number)
        elif deepspeed_zero.takes_gradients():
            window.timed(window.owners.zero_buckets, number)
        if number % 2 and self._reader.events_since(raw.facts) > CLOSING_SHARE * self._most_events:
            self._close(f"closed in the middle of a step: {self._limit}", in_step=True)

    @guarded("recording windows")
    def _end_step_in_window(self, window: OpenWindow, intervals: Sequence[PhaseInterval]) -> None:
        with self._all_or_nothing:
            window.add_peaks(intervals[window.skip :])
            window.skip = 0
            if self._is_capturing():
                self._restore()
                return
            done = self._clock.step + 1 - window.raw.first_step
            window.timed(window.owners.step_ended, len(window.raw.marks))
            events = self._reader.events_since(window.raw.facts)
            if done >= window.request.steps:
                self._close(in_step=False)
            elif events + events / done > CLOSING_SHARE * self._most_events:
                self._close(f"closed after step {self._clock.step}: {self._limit}", in_step=False)
            else:
                self._mark_in(window)

    def _drop_in_inference(self) -> None:
        with self._all_or_nothing:  # (a snapshot would import what only a training needs, in half a second)
            self._restore()

    @guarded("recording windows")
    def _end_open_window(self) -> None:
        window = self.window
        if window is not None:
            with self._all_or_nothing:
                # What follows the last step frees memory and is not part of a step.
                after_training = window.raw.last_step > self._clock.step and not window.has_work
                if after_training or self._is_capturing():
                    self._restore()
                else:
                    self._close("ended by the end of the session", in_step=bool(self._clock.cuts()))

    @guarded("recording windows")
    def out_of_memory(self, notes: list[str]) -> dict[int, str]:
        """End the open window at an out-of-memory error, or read the user's own history. Returns artifact ids by device.
        Empty if neither exists; a note says if one exists and is not read.
        """
        window = self.window
        if window is None:
            taken = not self._off and not self._is_capturing() and not self._uploads.is_full
            return self._read_users_history(notes) if taken and self._history.is_users else {}
        with self._all_or_nothing:
            if self._is_capturing():
                self._restore()
                return {}
            window.raw.idents = {facts.device: random_id() for facts in window.raw.facts}
            self._close("ended by an out-of-memory error", in_step=True)
        return window.raw.idents

    def _read_users_history(self, notes: list[str]) -> dict[int, str]:
        devices = [counter.device for counter in self._clock.counters]
        raw = window_of_history(self._reader, devices, self._clock.step + 1, notes) if devices else None
        if raw is None:
            return {}
        self._uploads.put(partial(self._packing.artifacts, raw, 0.0))
        return raw.idents

    def _close(self, note: str = "", *, in_step: bool) -> None:
        """Close the window. ``in_step``: within a step, which is then its last one; else at the end of one."""
        window = self.window
        assert window is not None
        start_ns = time.perf_counter_ns()
        raw = window.raw
        window.add_peaks(self._clock.cuts()[window.skip :])
        raw.last_step = max(raw.first_step, self._clock.step + in_step)
        window.read_end(self._reader)
        if window.request is LEAK and raw.held is not None and not raw.held.spans_a_step:
            self._plan.leak_found()  # a scan was cut short, or there was none: try once more
        if note:
            raw.notes.append(note)
        if window.modules is not None:
            raw.modules = window.modules.names(self._roots or self._first_call.model())
        self._restore()
        window.spent_ns += time.perf_counter_ns() - start_ns + window.recording_ns
        self._uploads.put(partial(self._packing.artifacts, raw, window.spent_ns / 1e9))

    def _restore(self) -> None:
        """Restore everything as it was before the window."""
        window, self.window = self.window, None
        try:
            if window is not None:
                if window.modules is not None:
                    window.modules.end()
                self._metadata.restore(window.thread, window.metadata)
        finally:
            self._history.end()

    def _yield_to_user(self) -> None:
        self._restore()
        self._plan.missed()
        self._users_history.report()

    def _failed(self) -> None:
        self._untracked_models.forget_variables()
        self._off = True
        self._restore()
