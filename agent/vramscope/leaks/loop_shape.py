"""Kind of the user's loop, as far as its calls have shown: which optimizers step, and what ends an iteration."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import Any

from vramscope.leaks.policy import POLICY


class LoopKind(enum.Enum):
    """What a loop does, as far as is known by now."""

    TRAINING = "training"
    """Steps end iterations."""
    ACCUMULATION = "accumulation"
    """An optimizer exists and has not stepped: backwards may accumulate gradients for its first step."""
    MANUAL_UPDATE = "manual update"
    """Backwards without an optimizer: each one ends an iteration."""
    NO_TRAINING = "no training"
    """No backward: a batch or a call of a model ends an iteration."""


class LoopShape:
    """State of the loop. It keeps no optimizer alive.

    optimizer_exists   whether a variable of the program refers to an optimizer; some ms
    """

    def __init__(self, optimizer_exists: Callable[[], bool] = lambda: False) -> None:
        self._optimizer_exists = optimizer_exists
        self.training_mode = True
        """Mode of the root module that was called last."""
        self.has_steps = False
        """True once an optimizer has stepped or a step was signalled."""
        self.will_train = False
        """True where an optimizer was found that has not stepped."""
        self.is_between_steps = False
        """True from the end of a step to the next forward."""
        self.has_hidden_forward = False
        """True where the last graph was built without a call of a root module."""
        self.trained_since_batch = False
        """True where a backward ran between the last two batches."""
        self.pass_ended = False
        """True where a pass over a loader ended with graphs that no backward has walked."""
        self.ages_are_sure = True
        """False after a differentiable backward on a GPU."""
        self.epoch_ended = 0
        """Iteration in which the last epoch of the training ended."""
        self.last_backward = -1
        """Autograd's sequence number at the last backward."""
        self.optimizer = 0
        """Id of the optimizer that stepped last."""
        self.optimizers: dict[int, int] = {}
        """Ids of the optimizers that step in turn, with the number of their last step."""
        self._once: dict[int, weakref.ref[Any]] = {}
        """Optimizers that have ever stepped, by id."""
        self._steps = 0
        self._backward_at_batch = -1
        self._sequence_at_batch = 0

    def kind(self, backwards: int) -> LoopKind:
        if self.has_steps:
            return LoopKind.TRAINING
        if self.will_train and backwards <= POLICY.unstepped_backwards:
            return LoopKind.ACCUMULATION
        return LoopKind.MANUAL_UPDATE if backwards else LoopKind.NO_TRAINING

    @property
    def may_evaluate(self) -> bool:
        """True where graphs without a backward may be those of an evaluation."""
        return not self.training_mode or self.pass_ended or not self.optimizers

    def may_be_summed_up(self, optimizers: int, dropped: int) -> bool:
        """True where graphs wait for an optimizer's first step: gradient accumulation may sum up their losses."""
        pending = dropped < POLICY.dropped_graphs and self.training_mode and not self.pass_ended
        return pending and optimizers > 0 and not self.optimizers

    def waits_for_a_step(self, optimizers: int, backwards: int) -> bool:
        """True where optimizers exist and none has stepped yet. (Batches of a loader count as iterations all the same.)"""
        return optimizers > 0 and not self.has_steps and backwards <= POLICY.unstepped_backwards

    def expects_steps(self) -> bool:
        """True where no optimizer has stepped and one exists, so that the calls of models belong to a training to come."""
        self.will_train = not self.has_steps and self._optimizer_exists()
        return self.will_train

    def optimizer_stepped(self, optimizer: object) -> None:
        """Note the step of one optimizer; several step in turn."""
        key = id(optimizer)
        self._steps += 1
        known = self._once.get(key)
        if known is None or known() is not optimizer:
            self._once = {one: reference for one, reference in self._once.items() if reference() is not None}
            self._once[key] = weakref.ref(optimizer)
        self.optimizers[key] = self._steps
        if len(self.optimizers) > 1:  # those of an earlier fold or phase no longer step
            recent = self._steps - POLICY.recent_steps
            self.optimizers = {known: last for known, last in self.optimizers.items() if last > recent}
        self.optimizer = key
        self.is_between_steps = True

    def is_retired(self, optimizer: Any) -> bool:
        """True for an optimizer that has stepped and no longer does."""
        reference = self._once.get(id(optimizer))
        return reference is not None and reference() is optimizer and id(optimizer) not in self.optimizers

    def begins_step(self) -> bool:
        """Something begins. True if it is the first since a step has ended."""
        was_between, self.is_between_steps = self.is_between_steps, False
        return was_between

    @property
    def has_retired(self) -> bool:
        """True if an optimizer that no longer steps is alive."""
        return any(reference() is not None and key not in self.optimizers for key, reference in self._once.items())

    def batch_begins(self, sequence_number: int) -> bool:
        """Note that a batch is fetched. True if graphs were built since the previous one."""
        self.trained_since_batch = self.last_backward != self._backward_at_batch
        self._backward_at_batch = self.last_backward
        before, self._sequence_at_batch = self._sequence_at_batch, sequence_number
        return bool(before) and sequence_number - before > POLICY.operations_of_a_graph

    def next_optimizers(self) -> set[int]:
        """Ids of the optimizers after whose steps a scan is needed."""
        return set(self.optimizers) or {self.optimizer}
