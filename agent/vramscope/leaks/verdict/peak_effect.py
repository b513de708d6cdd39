"""Effect of a fix on a step's peak: freeing what is retained often lowers no peak.

An overlapping result dies when its name is bound again, somewhere in the next forward. The clock cuts the peak counters right
after that, once its memory is free. So the step splits into intervals in which the old result was alive, was gone, and was there
again. Where it need not be alive, the peak would be lower by its bytes; the step's new peak is the highest of all intervals.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.process.after_free import after_free
from vramscope.protocol import series
from vramscope.steps.phase import BACKWARD, DATA, OPTIMIZER, OTHER
from vramscope.steps.records import PhaseInterval

AFTER_BACKWARD: Final = (OPTIMIZER, DATA, OTHER)
SAVES_ITS_RESULT: Final = ("_saved_result", "_saved_result0")
"""Attributes of autograd's nodes whose backward needs their own result, such as softmax."""


class Effect(NamedTuple):
    peak_bytes: int | None
    """Bytes by which the peak falls; None if unknown."""
    words: str


NOT_MEASURED = Effect(None, "Not measured: it was freed while no peaks were read.")
NOT_ON_CPU = Effect(None, "Not measured: PyTorch counts no peaks on the CPU.")


def avoidable_bytes(
    tensors: Sequence[Any], held_bytes: int, *, read_late: bool, before_backward: bool
) -> dict[int, int]:
    """Bytes of this step's results that need not be alive, by phase.

    read_late         code reads them after backward
    before_backward   they may be freed by then, but for what backward needs
    """
    if read_late:
        return {}  # it is unknown when it is emptied
    found: dict[int, int] = dict.fromkeys(AFTER_BACKWARD, held_bytes)
    if before_backward:
        needed: Storages = {}
        for tensor in tensors:
            if any(hasattr(type(tensor.grad_fn), name) for name in SAVES_ITS_RESULT):
                storages.add(needed, tensor)
        found[BACKWARD] = max(0, held_bytes - sum(needed.values()))
    return found


class PeakFollower:
    """Follows one holder's tensors through one step, to see when they die. It keeps nothing alive."""

    def __init__(self, tensors: Sequence[Any], held_bytes: int, cut: Callable[[], int | None]) -> None:
        """``cut`` ends the current interval and returns its position; called when the last tensor is freed, on its thread."""
        self.held_bytes = held_bytes
        self.died_after: int | None = None
        """Position of the last interval in which one was alive."""
        self._cut = guarded("the effect on the peak")(cut)
        self._left = len(tensors)
        self._is_late = False
        self._references = [
            reference for tensor in tensors for reference in (after_free(tensor, self), weakref.ref(tensor, self._died))
        ]

    def _died(self, reference: weakref.ref[Any]) -> None:
        self._left -= 1
        if threading.current_thread() is not threading.main_thread():
            # The main thread cannot be called in time. (If this is the training's thread, its peak still includes what is freed.)
            self._is_late = True
            if not self._left:
                self.died_after = self._cut()

    def freed(self) -> None:
        if not self._left and not self._is_late and self.died_after is None:
            self.died_after = self._cut()

    def effect(self, intervals: Sequence[PhaseInterval], position: int, avoidable: Mapping[int, int]) -> Effect:
        """Effect on the step that has ended.

        position    of the device in the intervals' cuts
        avoidable   bytes of this step's results that would not be alive after the fix, by phase
        """
        peaks, unknown = self.peaks(intervals, position)
        if unknown is not None:
            return unknown
        last = self.died_after
        if last is None:
            freed = min(self.held_bytes, max(peaks))
            return Effect(freed, "It was alive during the whole step, including the peak.")
        lowered = [
            peak - (self.held_bytes if index <= last else avoidable.get(interval.phase, 0))
            for index, (interval, peak) in enumerate(zip(intervals, peaks, strict=True))
        ]
        effect = max(0, max(peaks) - max(lowered))
        at = peaks.index(max(peaks))
        where = series.phase_place(series.PHASES[intervals[at].phase])
        if at <= last:
            words = f"The peak is {where}, while the result of the last step is still alive."
        elif avoidable.get(intervals[at].phase):
            words = f"The peak is {where}, where it is alive and no longer needed."
        else:
            words = f"The peak is {where}, after the new result replaced the old one."
        return Effect(effect, words)

    def peaks(self, intervals: Sequence[PhaseInterval], position: int) -> tuple[list[int], Effect | None]:
        """Peak of each interval, and the answer where they do not show the effect."""
        self._references.clear()  # later deaths must cut nothing
        peaks = [
            interval.cuts[position].peak_allocated_bytes for interval in intervals if position < len(interval.cuts)
        ]
        if not peaks or len(peaks) != len(intervals):
            return peaks, NOT_ON_CPU
        if not self._left and (self.died_after is None or self.died_after >= len(intervals)):
            return peaks, NOT_MEASURED
        return peaks, None


def effect_of_made(
    made: Sequence[tuple[PeakFollower, int]], intervals: Sequence[PhaseInterval], position: int
) -> Effect:
    """Effect on the step that has ended, of all graphs of one origin. Each comes with the interval before it was built."""
    lowered: list[int] = []
    alive = False
    for follower, since in made:
        peaks, unknown = follower.peaks(intervals, position)
        if unknown is not None:
            return unknown
        at = peaks.index(max(peaks))
        if at == since:
            return Effect(
                None, "The peak is in the forward pass that builds it; how much of it is needed there is unknown."
            )
        last = len(intervals) if follower.died_after is None else follower.died_after
        alive = alive or since < at <= last
        lowered = [peak - follower.held_bytes * (since < index <= last) for index, peak in enumerate(lowered or peaks)]
    when = "while it is alive" if alive else "when it is not alive"
    return Effect(
        max(peaks) - max(lowered), f"The peak is {series.phase_place(series.PHASES[intervals[at].phase])}, {when}."
    )
