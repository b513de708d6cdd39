"""Who holds what should be gone, looked for at the error itself: what the session's own looks could not be sure of yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from vramscope.guard import guarded
from vramscope.oom import exception_refs
from vramscope.oom import late_suspects as last_look
from vramscope.oom.growing_tensor import as_leak, lengthened
from vramscope.oom_diagnosis.growth import LEAKS_THAT_GROW, growth_of, held_by
from vramscope.protocol import messages
from vramscope.steps.phase import EVAL, FORWARD

if TYPE_CHECKING:
    from vramscope.leaks.detector import LeakDetector
    from vramscope.oom.owners import Holdings
    from vramscope.oom.trigger import Error
    from vramscope.steps.clock import StepClock

EARLY_STEPS: Final = 8
"""then the leak detector has looked twice, and told of what is held over"""
NAMED_SHARE: Final = 0.5
"""of what has grown: where the leaks that are known hold less, there is one more look"""


class Suspects:
    """One a session. ``graphs``: who watches over graphs; None where nobody does."""

    def __init__(self, clock: StepClock, graphs: Callable[[], LeakDetector | None]) -> None:
        self._clock, self._graphs = clock, graphs
        self._looked = False

    def held_over(self, error: Error) -> list[messages.Leak]:
        """In a training's first steps, of which there were no looks that could be sure."""
        graphs = self._graphs()
        early = 1 <= self._clock.step <= EARLY_STEPS and self._clock.phase == FORWARD
        if graphs is None or not early or self._looked or error.thread is not None or not error.here:
            return []
        with guarded("the look at what is held over"):
            return last_look.held_over(graphs.boundary, graphs.retained, self._clock.step)
        return []

    def kept_by_errors(self, error: Error, faults: Iterable[BaseException]) -> list[messages.Leak]:
        """Of an error whose ``except`` block tries again, and of one that was caught and is still held (of ``faults``)."""
        if error.seen_by != "observer" or error.thread is not None:
            return []
        with guarded("the look at exceptions that are held"):
            weights = [one for root in error.roots or () for one in (*root.parameters(), *root.buffers())]
            owned = (*weights, *(one.grad for one in weights if one.is_leaf))
            thread = self._clock.thread or threading.get_ident()
            found = exception_refs.kept_by_handled(thread, owned, self._clock.step)
            kept = exception_refs.kept_by_living(faults, thread, owned, self._clock.step) if found is None else None
            return [one for one in (found, kept) if one is not None]
        return []

    def last_look(
        self, steps: dict[str, bytes], leaks: Sequence[messages.Leak], gathered_bytes: int, error: Error
    ) -> list[messages.Leak]:
        """Who holds what has grown, where the leaks that are known hold little of it; once a session."""
        if not error.here:
            return []
        growth = growth_of(steps)
        grown_bytes = gathered_bytes if growth is None else growth.bytes
        held = sum(held_by(leak, self._clock.step) for leak in leaks if leak.kind in LEAKS_THAT_GROW)
        if not grown_bytes or held >= NAMED_SHARE * grown_bytes or self._looked:
            return []
        self._looked = True
        with guarded("the last look"):
            one = lengthened(error.frames, error.asked_bytes) if error.running is None and not error.thread else None
            if one is not None and last_look.fits(one.held_bytes, grown_bytes):
                return [as_leak(one, self._clock.step)]
            return last_look.holders_of(grown_bytes, self._clock.step)
        return []

    def gathered_bytes(self, counters: dict[str, int], held: Holdings | None) -> int:
        """In an evaluation, which has no steps that could be seen to grow: all that is in use and nobody owns."""
        if held is None or self._clock.phase != EVAL:
            return 0
        return max(0, counters.get("active_bytes.all.current", 0) - sum(held.owned_bytes.values()))
