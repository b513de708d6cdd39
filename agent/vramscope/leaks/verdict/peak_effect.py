"""Measures by how much a step's peak would fall if what is held were let go: held is not saved.

What overlaps dies when its name is bound anew, somewhere in the next forward. The clock is told to cut the peak
counters right after that, when its memory is free, so the step falls into stretches in which the old thing was alive, was gone,
and was there again.
Where it need not have been alive the peak would be lower by its bytes; the step's new peak is the highest of all stretches.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vramscope.guard import guarded
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.verdict.after_free import after_death
from vramscope.protocol import series
from vramscope.steps.phase import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.records import PhaseInterval

AFTER_BACKWARD: Final = (OPTIMIZER, DATA, OTHER)
SAVES_ITS_RESULT: Final = ("_saved_result", "_saved_result0")
"""attributes of those of autograd's nodes whose backward needs what they have given, as softmax's does"""


class Effect(NamedTuple):
    peak_bytes: int | None
    """by how much the peak falls; None: not known"""
    words: str


NOT_MEASURED = Effect(None, "it went at a moment at which the peaks were not read, so the effect is not known")
NOT_ON_CPU = Effect(None, "PyTorch counts no peaks on the CPU, so the effect on the peak is not known")


def avoidable_bytes(
    things: Sequence[Any], held_bytes: int, *, read_late: bool, before_backward: bool
) -> dict[int, int]:
    """By phases of a step, how many of what the step makes need not be alive there.

    read_late         something reads it after backward
    before_backward   it may be let go of then: but for what backward needs, which lives for that
    """
    if read_late:
        return {}  # (how late is not known)
    found: dict[int, int] = dict.fromkeys(AFTER_BACKWARD, held_bytes)
    if before_backward:
        needed: Storages = {}
        for thing in things:
            if any(hasattr(type(thing.grad_fn), name) for name in SAVES_ITS_RESULT):
                storages.add(needed, thing)
        found[BACKWARD] = max(0, held_bytes - sum(needed.values()))
    return found


class Follower:
    """Follows one holder's things through one step, to see when they die. Keeps nothing alive."""

    def __init__(self, things: Sequence[Any], held_bytes: int, cut: Callable[[], int | None]) -> None:
        """``cut`` ends the running stretch and gives its position; called when the last thing is freed, on its thread."""
        self.held_bytes = held_bytes
        self.died_after: int | None = None
        """position of the last stretch in which it was alive"""
        self._cut = guarded("the effect on the peak")(cut)
        self._left = len(things)
        self._is_late = False
        self._references = [
            reference for thing in things for reference in (after_death(thing, self), weakref.ref(thing, self._died))
        ]

    def _died(self, reference: weakref.ref[Any]) -> None:
        self._left -= 1
        if threading.current_thread() is not threading.main_thread():
            # From here the main thread cannot be told in time. (If the training's is this one, what is freed is still in its peak.)
            self._is_late = True
            if not self._left:
                self.died_after = self._cut()

    def freed(self) -> None:
        if not self._left and not self._is_late and self.died_after is None:
            self.died_after = self._cut()

    def effect(self, stretches: Sequence[PhaseInterval], position: int, avoidable: Mapping[int, int]) -> Effect:
        """The effect on the step that is over.

        position    of the device in the stretches' cuts
        avoidable   by phase, bytes of what this step makes that would not be alive there after the advice
        """
        peaks, unknown = self.peaks(stretches, position)
        if unknown is not None:
            return unknown
        last = self.died_after
        if last is None:
            freed = min(self.held_bytes, max(peaks))
            return Effect(freed, "it was alive through the whole step, at the peak too")
        lowered = [
            peak - (self.held_bytes if index <= last else avoidable.get(stretch.phase, 0))
            for index, (stretch, peak) in enumerate(zip(stretches, peaks, strict=True))
        ]
        effect = max(0, max(peaks) - max(lowered))
        at = peaks.index(max(peaks))
        where = series.PHASES[stretches[at].phase]
        if at <= last:
            words = f"the peak is in {where}, while the last step's is still alive"
        elif avoidable.get(stretches[at].phase):
            words = f"the peak is in {where}, where it is alive and no longer needed"
        elif stretches[at].phase == FORWARD:
            words = "the peak is in forward, after the new one replaced the old"
        else:
            words = f"the peak is in {where}, when the new one had already replaced the old"
        return Effect(effect, words)

    def peaks(self, stretches: Sequence[PhaseInterval], position: int) -> tuple[list[int], Effect | None]:
        """The peak of each stretch, and what there is to say where they do not tell."""
        self._references.clear()  # what dies later is of no interest, and must cut nothing
        peaks = [stretch.cuts[position].peak_allocated_bytes for stretch in stretches if position < len(stretch.cuts)]
        if not peaks or len(peaks) != len(stretches):
            return peaks, NOT_ON_CPU
        if not self._left and (self.died_after is None or self.died_after >= len(stretches)):
            return peaks, NOT_MEASURED
        return peaks, None


def effect_of_made(made: Sequence[tuple[Follower, int]], stretches: Sequence[PhaseInterval], position: int) -> Effect:
    """The effect on the step that is over, of all that was made in it in one place: each with the stretch behind which it was."""
    lowered: list[int] = []
    alive = False
    for follower, since in made:
        peaks, unknown = follower.peaks(stretches, position)
        if unknown is not None:
            return unknown
        at = peaks.index(max(peaks))
        if at == since:
            return Effect(
                None, "the peak is in the forward that builds it, and what of it is needed there is not known"
            )
        last = len(stretches) if follower.died_after is None else follower.died_after
        alive = alive or since < at <= last
        lowered = [peak - follower.held_bytes * (since < index <= last) for index, peak in enumerate(lowered or peaks)]
    when = "while it is alive" if alive else "when it is not alive"
    return Effect(max(peaks) - max(lowered), f"the peak is in {series.PHASES[stretches[at].phase]}, {when}")
