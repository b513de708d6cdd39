"""Records windows of allocator history: opens and closes them at the training's own steps, and hands them on to be packed.

A window costs the training thread a switch, a snapshot without traces, about 0.2 µs an event (1 µs with Python stacks), and one
snapshot at its end (0.4 to 1.2 µs an event). Outside of windows there is a comparison a phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from vramscope import console, wire
from vramscope.collector import collector_paused
from vramscope.guard import guarded
from vramscope.memory.allocator import SharedPeakCounters, share_peak_counters
from vramscope.trace.history import History
from vramscope.trace.modules import ModuleTags, is_compiled
from vramscope.trace.plan import Plan, Wish
from vramscope.trace.raw import Facts, Mark, Raw, Tree, counters_of
from vramscope.trace.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from vramscope.memory.allocator import Interval
    from vramscope.ring import Ring
    from vramscope.steps.clock import StepClock, Stretch
    from vramscope.window import Window

MOST_EVENTS: Final = 120_000
"""of one window: 24 MB of host memory, and 0.1 s to read them"""
ROOM: Final = 0.8
"""of these, how many may be there when a window is closed early: the rest is room for what the next stretch brings"""
TAG: Final = "vs"
"""what our metadata begins with; short, so that PyTorch keeps it without an allocation"""

RECORD_NS, RECORD_STACK_NS = 200, 1200
"""what an event costs while it is recorded (GPT-2 on torch 2.13), to reckon what a window cost"""


class Recorder:
    """One a session. All calls but :meth:`ask` come on the training thread; the clock tells of phases and steps.

    roots       the models, for the names of modules
    on_window   called on our own thread with each window when it is packed
    """

    def __init__(
        self,
        clock: StepClock,
        ring: Ring,
        *,
        roots: Iterable[torch.nn.Module] = (),
        pace_s: float = 0.2,
        on_window: Callable[[Window], None] | None = None,
        plan: Plan | None = None,
        most_events: int = MOST_EVENTS,
    ) -> None:
        import torch

        self._torch = torch
        self._clock = clock
        self._ring = ring
        self._roots = roots
        self._plan = plan or Plan()
        self._most_events = most_events
        self._history = History(self._give_way)
        self._uploads = Uploads(ring, pace_s=pace_s, on_window=on_window, on_cost=self._plan.ended)
        self._set_metadata: Callable[[str], None] = getattr(torch._C, "_cuda_setMemoryMetadata", lambda text: None)
        self._get_metadata: Callable[[], str] = getattr(torch._C, "_cuda_getMemoryMetadata", lambda: "")
        self._is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._fraction: Callable[[int], float] | None = getattr(torch._C, "_cuda_getMemoryFraction", None)
        self._shared: SharedPeakCounters | None = None
        self._window: _Open | None = None
        self._off = False

    @guarded("recording windows")
    def begin(self) -> None:
        """Listen to the clock; the first window begins at once where CUDA is in use already, else with it."""
        self._history.listen()
        self._clock.recorder = self
        self._begin_if_wished()

    def ask(self) -> None:
        """Somebody would like a window of the next steps. From any thread."""
        self._plan.ask()

    def close(self) -> None:
        """The session ends: a window that is open is closed, and all go to the ring. At most 2 s."""
        self._clock.recorder = None
        self._end_open_window()
        self._history.release()
        self._uploads.close(2.0)

    def after_fork_in_child(self) -> None:
        """The child records nothing, and does not touch what is on: that is CUDA's."""
        self._off = True
        self._clock.recorder = None
        self._window = None
        self._history.forget()
        self._uploads.after_fork_in_child()

    # -- what the clock tells ------------------------------------------------------------------------------------------

    def entered(self) -> None:
        """A phase begins; its step's counters have just been cut."""
        if self._window is not None:
            self._mark()
        elif self._clock.step == 0 and not self._off:
            self._begin_if_wished()  # CUDA may have come up after attach

    def end_step(self, stretches: Sequence[Stretch]) -> None:
        """A step is over, and these were its stretches."""
        if self._off:
            return
        window = self._window
        if window is None:
            self._look_at(stretches)
            self._begin_if_wished()
        else:
            self._step_in(window, stretches)

    @guarded("recording windows")
    def _look_at(self, stretches: Sequence[Stretch]) -> None:
        cuts = [cut for stretch in stretches for cut in stretch.cuts]
        if cuts:
            self._plan.step_ended(self._clock.step, max(cut.peak_allocated_bytes for cut in cuts))

    # -- a window ------------------------------------------------------------------------------------------------------

    @guarded("recording windows")
    def _begin_if_wished(self) -> None:
        wish = self._plan.wish()
        if wish is None or self._off or not self._clock.counters or self._clock.calm or self._uploads.is_full:
            return
        if self._is_capturing():
            return  # and again at the next phase
        if self._history.is_the_users:
            self._plan.missed()
            self._tell_users_history()
            return
        with self._all_or_nothing():
            self._open(wish)

    def _open(self, wish: Wish) -> None:
        began = time.perf_counter_ns()
        clock = self._clock
        self._plan.begun(wish)
        stacks = wish.stacks_from == 0
        metadata = self._get_metadata()
        self._history.begin(self._most_events, stacks=stacks)
        start = self._snapshot()
        facts = [self._facts(counter.device) for counter in clock.counters]
        raw = Raw(
            reason=wish.reason,
            first_step=clock.step,
            last_step=clock.step,
            most_events=self._most_events,
            tag=TAG,
            start=start,
            end={},
            facts=facts,
            marks=[],
            modules=[],
            notes=[] if self._fraction is not None else ["whether a memory limit is set cannot be read in this torch"],
            stacks=stacks,
        )
        self._window = _Open(wish, raw, metadata, len(clock.cuts()))
        if stacks:
            self._tag_modules(self._window)
        self._mark()
        self._window.spent_ns = time.perf_counter_ns() - began

    @guarded("recording windows")
    def _mark(self) -> None:
        window, clock = self._window, self._clock
        if window is None:
            return
        with self._all_or_nothing():
            if self._is_capturing():
                # Its allocations belong to the graph, and are made once: no part of what a training's steps ask for.
                self._give_up()
                return
            number = len(window.raw.marks)
            window.raw.marks.append(
                Mark(time.time_ns() // 1000, clock.step, clock.phase if clock.watched else wire.UNKNOWN)
            )
            prefix = f"{TAG}{number}"
            if window.modules is not None:
                window.modules.phase(prefix)
            self._set_metadata(prefix)
            if number % 2 and self._events_so_far(window) > ROOM * self._most_events:
                self._close(f"closed in the middle of a step: more than {self._most_events} events are not recorded")

    @guarded("recording windows")
    def _step_in(self, window: _Open, stretches: Sequence[Stretch]) -> None:
        with self._all_or_nothing():
            window.see(stretches[window.skip :])
            window.skip = 0
            if self._is_capturing():
                self._give_up()
                return
            done = self._clock.step - window.raw.first_step
            events = self._events_so_far(window)
            if done >= window.wish.steps:
                self._close()
            elif events + events / done > ROOM * self._most_events:
                self._close(
                    f"closed after step {self._clock.step - 1}: more than {self._most_events} events are not recorded"
                )
            else:
                if done == window.wish.stacks_from and self._history.keeps_when_switched:
                    window.raw.stacks = True
                    window.events_without_stacks = events
                    self._history.add_stacks(self._most_events)
                    self._tag_modules(window)
                self._mark()

    @guarded("recording windows")
    def _end_open_window(self) -> None:
        window = self._window
        if window is not None:
            with self._all_or_nothing():
                if self._is_capturing():
                    self._give_up()
                else:
                    self._close("the session ended in it")

    def _close(self, note: str = "") -> None:
        window = self._window
        assert window is not None
        began = time.perf_counter_ns()
        raw, step = window.raw, self._clock.step
        window.see(self._clock.cuts()[window.skip :])
        # Closed at a step's end, the step that comes is not in it.
        raw.last_step = max(raw.first_step, step - 1 if not self._clock.cuts() else step)
        raw.end = self._snapshot()
        events = 0
        for facts in raw.facts:
            stats = self._read(facts.device)
            facts.end_counters = counters_of(stats)
            peak_allocated, peak_reserved = window.peaks.get(facts.device, (wire.UNKNOWN, wire.UNKNOWN))
            # What came after the last cut is in the counters themselves.
            facts.peak_allocated_bytes = max(peak_allocated, stats["allocated_bytes"]["all"]["peak"])
            facts.peak_reserved_bytes = max(peak_reserved, stats["reserved_bytes"]["all"]["peak"])
            events += len(raw.end["device_traces"][facts.device])
        if note:
            raw.notes.append(note)
        if window.modules is not None:
            raw.modules = window.modules.names(self._roots)
        self._give_up()
        with_stacks = events - window.events_without_stacks if raw.stacks else 0
        recording = with_stacks * RECORD_STACK_NS + (events - with_stacks) * RECORD_NS
        window.spent_ns += time.perf_counter_ns() - began + recording
        self._uploads.put(raw, window.spent_ns / 1e9)

    def _give_up(self) -> None:
        """Leave everything as it was before the window."""
        window, self._window = self._window, None
        if window is not None and window.modules is not None:
            window.modules.end()
        if window is not None and self._get_metadata().startswith(TAG):
            self._set_metadata(window.metadata)
        self._history.end()

    def _give_way(self) -> None:
        self._give_up()
        self._plan.missed()
        self._tell_users_history()

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

    # -- what is read --------------------------------------------------------------------------------------------------

    def _snapshot(self) -> Tree:
        with collector_paused():
            tree: Tree = self._torch.cuda.memory._snapshot()
        return tree

    def _read(self, device: int) -> Tree:
        self._shared = self._shared or share_peak_counters()
        return self._shared.read(device)

    def _facts(self, device: int) -> Facts:
        cuda = self._torch.cuda
        counters = counters_of(self._read(device))
        free, total = cuda.mem_get_info(device)
        fraction = 1.0 if self._fraction is None else self._fraction(device)
        properties = cuda.get_device_properties(device)
        return Facts(
            device=device,
            name=properties.name,
            total_bytes=total,
            free_bytes=free,
            # The allocator reckons with the properties' total, and takes 1.0 for no limit at all.
            limit_bytes=int(fraction * properties.total_memory) if fraction < 1 else None,
            start_counters=counters,
        )

    def _events_so_far(self, window: _Open) -> int:
        """As the counters tell: an allocation and the two events of its free; segments are few beside them."""
        events = 0
        for facts in window.raw.facts:
            stats, before = self._read(facts.device), facts.start_counters
            events += stats["allocation"]["all"]["allocated"] - before["allocation.all.allocated"]
            events += 2 * (stats["allocation"]["all"]["freed"] - before["allocation.all.freed"])
        return events

    def _tag_modules(self, window: _Open) -> None:
        if hasattr(self._torch._C, "_cuda_setMemoryMetadata") and not is_compiled():
            window.modules = ModuleTags(self._set_metadata)
            window.modules.begin()

    def _tell_users_history(self) -> None:
        text = "memory history is recorded by this process itself, so that no windows of it are recorded for vramscope"
        if console.speaks_for_host():
            console.say_once("the user's history", f"{text} meanwhile")
        if not self._told:
            self._told = True
            self._ring.put(
                wire.Event(time_ns=time.time_ns(), kind="notice", step=self._clock.step, data={"text": text})
            )

    _told = False


class _Open:
    """A window that is being recorded."""

    def __init__(self, wish: Wish, raw: Raw, metadata: str, skip: int) -> None:
        self.wish = wish
        self.raw = raw
        self.metadata = metadata
        """the user's own, to be put back"""
        self.skip = skip
        """stretches of the first step that were over before the window began"""
        self.modules: ModuleTags | None = None
        self.peaks: dict[int, tuple[int, int]] = {}
        self.events_without_stacks = 0
        """that came before stacks were switched on"""
        self.spent_ns = 0

    def see(self, stretches: Sequence[Stretch]) -> None:
        """The highest allocated and reserved of each device, by the allocator's own counters."""
        for stretch in stretches:
            for facts, cut in zip(self.raw.facts, stretch.cuts, strict=False):
                self._see(facts.device, cut)

    def _see(self, device: int, cut: Interval) -> None:
        allocated, reserved = self.peaks.get(device, (0, 0))
        self.peaks[device] = max(allocated, cut.peak_allocated_bytes), max(reserved, cut.peak_reserved_bytes)
