"""The optimizer whose steps are the training's, where several optimizers step: a GAN's two, or those of successive models.

Steps of the training are counted by one optimizer, the leader. Another one becomes the leader when the first stays silent.
"""

from __future__ import annotations

import weakref
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SILENT_STEPS = 8
"""Number of backward passes followed only by other optimizers' steps, after which the leader counts as gone."""
SUCCESSORS_STEPS = 2
"""The same number for a leader that had stepped alone for ``SILENT_STEPS``: folds, or models trained in turn."""


class Effect(Enum):
    """Effect of an optimizer's step on the training's step."""

    NONE = auto()
    """The step is another optimizer's."""
    MAY_END = auto()
    """The same after a leader that stepped alone: another such step shows that the training's step ended here."""
    ENDS = auto()
    """The training's step ends."""
    ENDS_TWO = auto()
    """The training's step ends, and one before it ended at the last ``MAY_END``."""


class LeadingOptimizer:
    """The leader of one session. Does not keep the optimizer alive."""

    def __init__(self) -> None:
        self._leader: weakref.ref[torch.optim.Optimizer] | None = None
        self._others_passes = 0
        """Number of backward passes in the running step that only other optimizers' steps followed."""
        self._others_after = -1
        """Number of backward passes in the running step at the last step of another optimizer."""
        self._alone = 0
        """Number of steps of the leader since another optimizer's."""
        self._others_steps = 0
        """Number of steps of other optimizers since the leader's last one."""
        self.most_others = 0
        """Highest number of steps of other optimizers between two of the leader's."""
        self._steady_steps = 0
        """Number of steps of the leader since ``most_others`` rose."""

    def __call__(self) -> torch.optim.Optimizer | None:
        """Return the leader; None before the first step, and if it is gone."""
        return None if self._leader is None else self._leader()

    @property
    def is_known(self) -> bool:
        """True from the first step of an optimizer on."""
        return self._leader is not None

    @property
    def is_steady(self) -> bool:
        """True if the leader and the number of other optimizers' steps have not changed for some steps."""
        return self() is not None and self._steady_steps >= SILENT_STEPS

    def set(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer the leader. What was known of the steps beside the former one's does not hold for it."""
        if self() is not optimizer:
            self._leader = weakref.ref(optimizer)
            self._others_steps = self.most_others = self._steady_steps = 0

    def stepped(self, optimizer: torch.optim.Optimizer, backward_passes: int) -> Effect:
        """An optimizer's step is over; ``backward_passes``: those of the running step so far."""
        leader = self()
        if leader is optimizer:
            self._alone = 0 if self._others_passes else self._alone + 1
            self._steady_steps = 0 if self._others_steps > self.most_others else self._steady_steps + 1
            self.most_others = max(self.most_others, self._others_steps)
            self._others_steps = 0
            return Effect.ENDS
        self._others_steps += 1
        if backward_passes != self._others_after:  # those that follow one backward pass step together
            self._others_after = backward_passes
            self._others_passes += 1
        was_alone = self._alone >= SILENT_STEPS
        if leader is not None and self._others_passes < (SUCCESSORS_STEPS if was_alone else SILENT_STEPS):
            return Effect.MAY_END if was_alone else Effect.NONE
        follows = was_alone and self._others_passes == SUCCESSORS_STEPS
        self.set(optimizer)
        self._alone = self._others_passes
        return Effect.ENDS_TWO if follows else Effect.ENDS

    def step_ended(self) -> None:
        """The training's step has ended, by whatever event."""
        self._others_passes, self._others_after = 0, -1
