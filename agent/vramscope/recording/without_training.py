"""Drops the first window of a program that only runs inference: no step of a training will end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vramscope.recording.window_state import NO_WORK
from vramscope.steps.events import Order, StepListener
from vramscope.steps.phase import BACKWARD

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock

MOST_PASSES: Final = 64
"""Number of forward passes without a backward pass after which a program counts as inference."""


class WithoutTraining(StepListener):
    """Counts forward passes until the first backward pass or step. After that it costs nothing.

    infers   called once, after MOST_PASSES
    trains   called if a backward pass follows all the same

    Subscribe it before the recorder, which then sees the change in the same event.
    """

    order = Order.RECORDING

    def __init__(self, clock: StepClock, infers: Callable[[], None], trains: Callable[[], None]) -> None:
        self._clock, self._infers, self._trains = clock, infers, trains
        self._passes = 0

    def phase_entered(self) -> None:
        """Count the begin of a phase."""
        clock = self._clock
        if clock.step or clock.micro_steps:
            clock.unsubscribe(self)
            if self._passes >= MOST_PASSES and clock.phase == BACKWARD and not clock.step:
                self._trains()
            return
        self._passes += clock.phase not in NO_WORK
        if self._passes == MOST_PASSES and clock.phase not in NO_WORK:
            self._infers()

    def phase_continued(self) -> None:
        """Count a forward pass that follows another one."""
        self.phase_entered()
