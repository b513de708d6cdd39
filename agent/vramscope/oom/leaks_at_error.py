"""Leaks that are searched for at the error itself, because the session's own scans could not be certain yet."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from vramscope.guard import guarded
from vramscope.oom import exception_refs, late_suspects
from vramscope.oom.data_on_device import LEAST_SHARE, collected_in_step, holder_of_data
from vramscope.oom.error_stack import backward_runs_python
from vramscope.oom.growing_tensor import as_leak, growing_tensor
from vramscope.oom.unused_graph import is_differentiated, unused_graph, updated_parameters
from vramscope.oom_diagnosis.growth import LEAKS_THAT_GROW, growth_of, retained_by
from vramscope.protocol import messages, series
from vramscope.protocol.oom_record import DataHolder
from vramscope.steps.phase import BACKWARD, DATA, EVAL, FORWARD, OTHER

if TYPE_CHECKING:
    from vramscope.leaks.detector import LeakDetector
    from vramscope.oom.other_models import LiveObjects
    from vramscope.oom.owned_memory import OwnedMemory
    from vramscope.oom.record_sections import TimelineSection
    from vramscope.oom.trigger import OomTrigger
    from vramscope.steps.clock import StepClock

EARLY_STEPS: Final = 8
"""After these steps the leak detector has scanned twice and reported what is retained from the previous step."""
WIDEST: Final = 8
"""Bytes of an input's number, at most."""
NAMED_SHARE: Final = 0.5
"""Share of the growth. Where known leaks retain less, one more scan is made."""


class LeaksAtError:
    """Scans for leaks at an out-of-memory error. One per session.

    detector   the leak detector; None where there is none
    """

    def __init__(self, clock: StepClock, detector: Callable[[], LeakDetector | None]) -> None:
        self._clock, self._detector = clock, detector
        self._scanned = self._scanned_for_data = False

    def retained_from_last_step(self, trigger: OomTrigger) -> list[messages.Leak]:
        """Suspects in a training's first steps, of which no scan could be certain."""
        detector = self._detector()
        early = 1 <= self._clock.step <= EARLY_STEPS and self._clock.phase == FORWARD
        if detector is None or not early or self._scanned or trigger.thread is not None or not trigger.is_own:
            return []
        with guarded("the scan for what is retained from the last step"), self._clock.reads as may_read:
            if not may_read:
                return []
            return late_suspects.retained_from_last_step(detector.boundary, detector.retained, self._clock.step)
        return []

    def retained_by_skipped_forward(self, trigger: OomTrigger) -> list[messages.Leak]:
        """The variable with the graph of a forward that had no backward, while a later forward is to replace it."""
        batch = self._clock.batch
        second = self._clock.phase == FORWARD and batch.forwards > 1 and not batch.evaluates
        if not second or trigger.thread is not None or not trigger.is_at_request:
            return []
        with guarded("the scan for the graph of a skipped batch"), self._clock.reads as may_read:
            if may_read:
                return late_suspects.retained_by_skipped_forward(trigger.frames, self._clock.step)
        return []

    def retained_by_exceptions(self, trigger: OomTrigger, exceptions: Iterable[BaseException]) -> list[messages.Leak]:
        """Leak by the exception whose ``except`` block tries again, or by a caught one that is still referenced."""
        if trigger.seen_by != "observer" or trigger.thread is not None:
            return []
        with guarded("the scan of exceptions"):
            weights = [one for root in trigger.roots or () for one in (*root.parameters(), *root.buffers())]
            owned = (*weights, *(one.grad for one in weights if one.is_leaf))
            thread, step = self._clock.thread or threading.get_ident(), self._clock.step
            handled = exception_refs.kept_by_handled(thread, owned, step)
            caught = exception_refs.kept_by_living(exceptions, thread, owned, step) if handled is None else None
            return [one for one in (handled, caught) if one is not None]
        return []

    def holders_of_growth(
        self, steps: dict[str, bytes], leaks: Sequence[messages.Leak], accumulated_bytes: int, trigger: OomTrigger
    ) -> list[messages.Leak]:
        """Holders of what has grown, where known leaks retain little of it; once a session."""
        if not trigger.is_own:
            return []
        growth = growth_of(steps)
        grown_bytes = accumulated_bytes if growth is None else growth.bytes
        known = sum(retained_by(leak, self._clock.step) for leak in leaks if leak.kind in LEAKS_THAT_GROW)
        if not grown_bytes or known >= NAMED_SHARE * grown_bytes or self._scanned:
            return []
        self._scanned = True
        with guarded("the scan for what has grown"), self._clock.reads as may_read:
            if not may_read:
                return []
            is_training = trigger.running is None and not trigger.thread
            tensor = growing_tensor(trigger.frames, trigger.asked_bytes) if is_training else None
            if tensor is not None and late_suspects.fits(tensor.held_bytes, grown_bytes):
                return [as_leak(tensor, self._clock.step, tensor.held_bytes)]
            if tensor is not None and tensor.alike > 1 and accumulated_bytes:
                # Each of them exists twice while it is extended, and only some of the new ones can be reached.
                return [as_leak(tensor, self._clock.step, grown_bytes)]
            return late_suspects.holders_of(grown_bytes, self._clock.step)
        return []

    def data(
        self, counters: dict[str, int], owned: OwnedMemory | None, timeline: TimelineSection, trigger: OomTrigger
    ) -> DataHolder | None:
        """Holder of the program's own data, where neither a leak nor growth was found; once a session."""
        before_forward_bytes = timeline.get("allocated_before_forward_bytes")
        input_shape, shape_before = timeline.get("input_shape", []), timeline.get("input_shape_before", [])
        last_peak_bytes = timeline.get("last_step", {}).get("peak_allocated_bytes")
        used = counters.get("active_bytes.all.current", 0)
        if owned is None or not trigger.is_own or self._scanned_for_data:
            return None
        # After the last of several optimizers the phase is not the clock's.
        outside = self._clock.phase in (OTHER, DATA) or timeline.get("phase") == series.PHASES[OTHER]
        in_step = not outside or trigger.running is not None
        # A model is known from the end of its first forward on.
        runs = self._clock.phase == BACKWARD and not backward_runs_python()
        unobserved = before_forward_bytes is None and (trigger.running is not None or runs)
        resident = (before_forward_bytes or 0 if in_step and not unobserved else used) - sum(owned.owned_bytes.values())
        at_last_peak = None if last_peak_bytes is None else last_peak_bytes - sum(owned.owned_bytes.values())
        collects = resident < LEAST_SHARE * used
        # A larger input may need more than the last step had.
        as_small = bool(input_shape) and math.prod(input_shape) <= math.prod(shape_before or [0])
        if collects and (at_last_peak is None or not in_step or unobserved or not as_small):
            return None
        self._scanned_for_data = True
        with guarded("the scan for data on the device"), self._clock.reads as may_read:
            if not may_read:
                return None
            if collects:
                more_than = max(at_last_peak or 0, int(LEAST_SHARE * used))
                return collected_in_step(trigger.device, more_than, owned.addresses)
            batch = math.prod(input_shape) * WIDEST if input_shape else None if unobserved else 0
            return holder_of_data(trigger.device, resident, used, batch, owned.addresses)
        return None

    def unused_graph(
        self, counters: dict[str, int], live: LiveObjects | None, trigger: OomTrigger
    ) -> DataHolder | None:
        """Variable with a graph that leads to no weights which an optimizer updates; in a training's steps only."""
        in_step = self._clock.phase in (FORWARD, BACKWARD) and self._clock.step and not self._clock.batch.evaluates
        if not in_step or live is None or trigger.thread is not None:
            return None
        with guarded("the scan for graphs of models that do not train"), self._clock.reads as may_read:
            if may_read:
                used, updated = counters.get("active_bytes.all.current", 0), updated_parameters(live)
                return (
                    None if is_differentiated(trigger.frames, updated) else unused_graph(trigger.device, updated, used)
                )
        return None

    def accumulated_bytes(self, counters: dict[str, int], owned: OwnedMemory | None) -> int:
        """Return all used bytes without an owner in an evaluation, where no step ends. 0 elsewhere."""
        if owned is None or self._clock.phase != EVAL:
            return 0
        return max(0, counters.get("active_bytes.all.current", 0) - sum(owned.owned_bytes.values()))
