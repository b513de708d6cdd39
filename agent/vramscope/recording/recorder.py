"""Records windows of allocator history: opens and closes them at the training's own steps, and hands them on to be packed.

A window costs the training thread a switch, a snapshot without traces, about 0.2 µs an event (1 µs with Python stacks), and one
snapshot at its end (0.4 to 1.2 µs an event). Outside of windows there is a comparison a phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory import deepspeed_zero
from vramscope.process.identity import random_id
from vramscope.process.notices import Notice
from vramscope.process.on_thread import on_thread
from vramscope.process.torch_compile import is_compiled
from vramscope.protocol import series
from vramscope.recording.counters import AllocatorReader
from vramscope.recording.leaked_addresses import LeakedAddresses, ScannedLeak
from vramscope.recording.module_tags import ModuleTags
from vramscope.recording.owners import Owners
from vramscope.recording.packing import WindowPacker
from vramscope.recording.plan import LEAK, WindowPlan, WindowRequest
from vramscope.recording.pytorch_history import PytorchHistory
from vramscope.recording.raw_window import Mark, RawWindow
from vramscope.recording.untracked_models import UntrackedModels
from vramscope.recording.user_history import ring_of
from vramscope.recording.window_state import OpenWindow
from vramscope.steps.events import Order, StepListener
from vramscope.steps.phase import DATA, OPTIMIZER, OTHER
from vramscope.transport.uploads import Uploads

if TYPE_CHECKING:
    import torch

    from vramscope.protocol.window import Window
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval, StepRecord
    from vramscope.transport.ring import Ring

MOST_EVENTS: Final = 120_000
"""of one window: 24 MB of host memory, and 0.1 s to read them"""
ROOM: Final = 0.8
"""of these, how many may be there when a window is closed early: the rest is room for what the next stretch brings"""
NO_WORK: Final = (OTHER, DATA)
"""phases in which a training does not compute"""
TAG: Final = "vs"
"""what our metadata begins with; short, so that PyTorch keeps it without an allocation"""

USERS_HISTORY: Final = (
    "memory history is recorded by this process itself, so that no windows of it are recorded for vramscope"
)


class DisableOnError:
    """A fault in here ends recording for good, and nothing is left on. (Not a generator's: that takes five times as long.)"""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._failed()


class WindowRecorder(StepListener):
    """One a session. All calls but :meth:`ask` come on the training thread; the clock tells of phases and steps.

    roots       the models, for the names of modules and of what they own
    optimizers  for what they own
    on_window   called on our own thread with each window when it is packed
    other_is_open   whether a profile is being recorded: never both at once
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
        most_events: int = MOST_EVENTS,
        other_is_open: Callable[[], bool] = lambda: False,
    ) -> None:
        import torch

        self._torch = torch
        self._clock = clock
        self._ring = ring
        self._roots = roots
        self._plan = plan or WindowPlan()
        self._most_events = most_events
        self._other_is_open = other_is_open
        self._history = PytorchHistory(self._give_way, self._settings_changed, self._emptying)
        self._users_history = Notice(ring.put, lambda: clock.step, USERS_HISTORY)
        self._uploads = Uploads(ring, lambda: clock.step, pace_s=pace_s, name="windows")
        self._packing = WindowPacker(on_window, self._plan.ended)
        self._set_metadata: Callable[[str], None] = getattr(torch._C, "_cuda_setMemoryMetadata", lambda text: None)
        self._get_metadata: Callable[[], str] = getattr(torch._C, "_cuda_getMemoryMetadata", lambda: "")
        self._is_capturing: Callable[[], bool] = getattr(
            torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
        )
        self._readings = AllocatorReader()
        self.window: OpenWindow | None = None
        """that is being recorded"""
        self._off = False
        self._onlookers = UntrackedModels(roots, optimizers)
        self._all_or_nothing = DisableOnError(self._failed)

    @property
    def is_open(self) -> bool:
        """A window is being recorded."""
        return self.window is not None

    @guarded("recording windows")
    def begin(self) -> None:
        """Listen to the clock; the first window begins at once where CUDA is in use already, else with it."""
        self._history.listen()
        if self._torch.cuda.is_initialized():
            self._onlookers.sweep()  # here rather than in a step
        self._clock.subscribe(self)
        self._begin_if_wished()

    def ask(self) -> None:
        """Somebody would like a window of the next steps. From any thread."""
        self._plan.ask()

    def leak_found(self) -> None:
        """Somebody is named who holds memory: a window would tell what the fix brings."""
        self._plan.leak_found()

    def close(self) -> None:
        """The session ends: a window that is open is closed, and all go to the ring. At most 2 s."""
        self._clock.unsubscribe(self)
        self._end_open_window()
        self._history.release()
        self._uploads.close(2.0)

    def after_fork_in_child(self) -> None:
        """The child records nothing, and does not touch what is on: that is CUDA's."""
        window, self.window = self.window, None
        self._off = True
        self._clock.unsubscribe(self)
        if window is not None and window.modules is not None:
            window.modules.end()
        self._history.forget()
        self._uploads.after_fork_in_child()

    # -- what the clock tells ------------------------------------------------------------------------------------------

    def phase_entered(self) -> None:
        """A phase begins; its step's counters have just been cut."""
        if self.window is not None:
            self._mark()
        elif self._clock.step == 0 and not self._off:
            self._begin_if_wished()  # CUDA may have come up after attach

    def phase_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The outermost module is called with these arguments, at the beginning of a phase."""
        window = self.window
        if window is not None:
            window.timed(window.owners.inputs, len(window.raw.marks) - 1, args, kwargs)

    @property
    def asks_who_holds(self) -> bool:
        """A window is open that is long enough for two looks at what leaks hold."""
        return self.window is not None and self.window.wish.steps > 1

    def held(self, seen: Iterable[ScannedLeak]) -> None:
        """A look is over, at a step's boundary: this is what all known leaks hold."""
        self._mark()
        window = self.window
        if window is not None and window.raw.held is not None:
            window.raw.held.scan(len(window.raw.marks) - 1, seen)

    def needed(self, addresses: Iterable[int]) -> None:
        """A backward is about to begin, and these are saved for it."""
        self._mark()
        window = self.window
        if window is not None and window.raw.held is not None:
            window.raw.held.needed(len(window.raw.marks) - 1, addresses)

    def step_ended(self, step: StepRecord) -> None:
        """A step is over, and these were its stretches."""
        if self._off:
            return
        window = self.window
        if window is None:
            self._begin_if_wished(step.intervals)
        else:
            self._step_in(window, step.intervals)

    @guarded("recording windows")
    def steps_renumbered(self, by: int) -> None:
        """The step that runs has a number that is higher by so many: a run was resumed."""
        window = self.window
        if window is not None:
            window.renumber(by)

    def _settings_changed(self) -> None:
        window = self.window
        # (another thread's are placed by no mark, and a note tells of them)
        if window is not None and get_ident() == window.thread:
            self._mark(notes=False)
            if self.window is window:  # (else it has just been closed)
                window.raw.settings_changed.append(len(window.raw.marks) - 1)

    def _emptying(self) -> None:
        window = self.window
        if window is not None and get_ident() == window.thread:
            self._mark(notes=False)
            if self.window is window:
                window.raw.emptied.append(len(window.raw.marks) - 1)

    def _look_at(self, stretches: Sequence[PhaseInterval]) -> None:
        allocated = reserved = -1
        for stretch in stretches:
            for cut in stretch.cuts:
                allocated = max(allocated, cut.peak_allocated_bytes)
                reserved = max(reserved, cut.peak_reserved_bytes)
        if allocated >= 0:
            self._plan.step_ended(self._clock.step, allocated, reserved)

    # -- a window ------------------------------------------------------------------------------------------------------

    @guarded("recording windows")
    def _begin_if_wished(self, ended: Sequence[PhaseInterval] = ()) -> None:
        """``ended``: those of a step that is over, whose peaks the plan has not seen."""
        if ended:
            self._look_at(ended)
        wish = self._plan.wish()
        if (
            wish is None
            or self._off
            or not self._clock.counters
            or self._clock.is_control_step
            or self._uploads.is_full
        ):
            return
        if self._is_capturing() or self._other_is_open():
            return  # and again at the next phase
        if self._history.is_the_users:
            self._plan.missed()
            self._users_history.report()
            return
        with self._all_or_nothing:
            self._open(wish)

    def _open(self, wish: WindowRequest) -> None:
        began = time.perf_counter_ns()
        clock = self._clock
        self._plan.begun(wish)
        stacks = wish.stacks_from == 0
        metadata = self._get_metadata()
        if metadata.startswith(TAG):
            metadata = ""  # an earlier window's, which its thread has not put back yet
        self._history.begin(self._most_events, stacks=stacks, frees=wish.frees)
        start = self._readings.snapshot()
        facts = [self._readings.facts(counter.device) for counter in clock.counters]
        raw = RawWindow(
            reason=wish.reason,
            first_step=clock.step + 1,
            last_step=clock.step + 1,
            most_events=self._most_events,
            tag=TAG,
            start=start,
            end={},
            facts=facts,
            marks=[],
            modules=[],
            notes=[] if self._readings.knows_limits else ["whether a memory limit is set cannot be read in this torch"],
            stacks=stacks,
        )
        raw.owners = owners = Owners(self._roots, self._onlookers)
        raw.held = LeakedAddresses()
        self.window = window = OpenWindow(wish, raw, metadata, len(clock.cuts()), owners)
        if stacks:
            self._tag_modules(window)
        self._mark_in(window)
        owners.all(0)
        window.spent_ns = time.perf_counter_ns() - began

    @guarded("recording windows")
    def _mark(self, *, notes: bool = True) -> None:
        """``notes``: with who owns what at this moment."""
        window = self.window
        if window is not None:
            with self._all_or_nothing:
                if self._is_capturing():
                    # Its allocations belong to the graph, and are made once: no part of what a training's steps ask for.
                    self._give_up()
                else:
                    self._mark_in(window, notes=notes)

    def _mark_in(self, window: OpenWindow, *, notes: bool = True) -> None:
        clock, raw = self._clock, window.raw
        number = len(raw.marks)
        raw.marks.append(Mark(time.time_ns() // 1000, clock.step + 1, clock.phase if clock.watched else series.UNKNOWN))
        prefix = f"{TAG}{number}"
        if window.modules is None:
            self._set_metadata(prefix)
        else:
            window.modules.phase(prefix)
        if not notes:
            return
        if clock.phase == OPTIMIZER and clock.watched:
            window.timed(window.owners.gradients, number)
        elif deepspeed_zero.takes_gradients():
            window.timed(window.owners.zeros, number)
        if number % 2 and self._readings.events_since(raw.facts) > ROOM * self._most_events:
            self._close(
                f"closed in the middle of a step: more than {self._most_events} events are not recorded",
                in_step=True,
            )

    @guarded("recording windows")
    def _step_in(self, window: OpenWindow, stretches: Sequence[PhaseInterval]) -> None:
        with self._all_or_nothing:
            window.see(stretches[window.skip :])
            window.skip = 0
            if self._is_capturing():
                self._give_up()
                return
            done = self._clock.step + 1 - window.raw.first_step
            window.timed(window.owners.stepped, len(window.raw.marks))
            events = self._readings.events_since(window.raw.facts)
            if done >= window.wish.steps:
                self._close(in_step=False)
            elif events + events / done > ROOM * self._most_events:
                self._close(
                    f"closed after step {self._clock.step}: more than {self._most_events} events are not recorded",
                    in_step=False,
                )
            else:
                if done == window.wish.stacks_from and self._history.keeps_when_switched:
                    window.raw.stacks = True
                    window.events_without_stacks = events
                    self._history.add_stacks(self._most_events)
                    self._tag_modules(window)
                self._mark_in(window)

    @guarded("recording windows")
    def _end_open_window(self) -> None:
        window = self.window
        if window is not None:
            with self._all_or_nothing:
                # (What comes behind the last step is no step of the training: it lets go, and is not what the run asks for.)
                behind = window.raw.last_step > self._clock.step and all(
                    mark.phase in NO_WORK for mark in window.raw.marks
                )
                if behind or self._is_capturing():
                    self._give_up()
                else:
                    self._close("the session ended in it", in_step=bool(self._clock.cuts()))

    @guarded("recording windows")
    def out_of_memory(self, notes: list[str]) -> dict[int, str]:
        """Memory has run out: the open window ends with that; where the user records, what that holds is one. Gives by device what
        it is called; nothing where none is open, with a note where one is and is not taken."""
        window = self.window
        if window is None:
            taken = not self._off and not self._is_capturing() and not self._uploads.is_full
            return self._users_ring(notes) if taken and self._history.is_the_users else {}
        with self._all_or_nothing:
            if self._is_capturing():
                self._give_up()
                return {}
            window.raw.idents = {facts.device: random_id() for facts in window.raw.facts}
            self._close("it ends with an out-of-memory error", in_step=True)
        return window.raw.idents

    def _users_ring(self, notes: list[str]) -> dict[int, str]:
        devices = [counter.device for counter in self._clock.counters]
        raw = ring_of(self._readings, devices, self._clock.step + 1, notes) if devices else None
        if raw is None:
            return {}
        self._uploads.put(partial(self._packing.artifacts, raw, 0.0))
        return raw.idents

    def _close(self, note: str = "", *, in_step: bool) -> None:
        """``in_step``: within a step, which is then the last one in it; else at the end of one."""
        window = self.window
        assert window is not None
        began = time.perf_counter_ns()
        raw = window.raw
        window.see(self._clock.cuts()[window.skip :])
        raw.last_step = max(raw.first_step, self._clock.step + in_step)
        window.read_end(self._readings)
        if window.wish is LEAK and raw.held is not None and not raw.held.spans_a_step:
            self._plan.leak_found()  # a look was cut short, or none came: once more
        if note:
            raw.notes.append(note)
        if window.modules is not None:
            raw.modules = window.modules.names(self._roots)
        self._give_up()
        window.spent_ns += time.perf_counter_ns() - began + window.recording_ns
        self._uploads.put(partial(self._packing.artifacts, raw, window.spent_ns / 1e9))

    def _give_up(self) -> None:
        """Leave everything as it was before the window."""
        window, self.window = self.window, None
        try:
            if window is not None:
                if window.modules is not None:
                    window.modules.end()
                # The metadata is the training thread's; memory may have run out on autograd's.
                on_thread(window.thread, partial(self._put_back_metadata, window.metadata))
        finally:
            self._history.end()

    def _put_back_metadata(self, text: str) -> None:
        if self._get_metadata().startswith(TAG):
            self._set_metadata(text)

    def _give_way(self) -> None:
        self._give_up()
        self._plan.missed()
        self._users_history.report()

    def _failed(self) -> None:
        self._off = True
        self._give_up()

    def _tag_modules(self, window: OpenWindow) -> None:
        if hasattr(self._torch._C, "_cuda_setMemoryMetadata") and not is_compiled():
            window.modules = ModuleTags(self._set_metadata)
            window.modules.begin()
