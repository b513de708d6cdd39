"""Removes the hooks for stretches of steps, and puts them back.

In plain steps only the ends of optimizers' steps are seen, and only the leading optimizer's are counted. The watched functions
keep their code, because Dynamo and Python's own caches depend on it; they call nobody.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.process.module_calls import module_calls
from vramscope.process.optimizer_calls import optimizer_calls

if TYPE_CHECKING:
    import torch

    from vramscope.process.patching import Patches
    from vramscope.steps.clock import StepClock


class PlainSteps:
    """Runs the plain steps of one session, without the hooks.

    listen          puts the hooks of optimizers in place; returns functions that remove them
    end_step        called at the end of a group's last step
    known           optimizers that have stepped before
    other_stepped   called after an unexpected step of another optimizer, with its hook's arguments; the hooks are back by then
    """

    def __init__(
        self,
        clock: StepClock,
        patches: Patches,
        *,
        listen: Callable[[], list[Callable[[], None]]],
        end_step: Callable[[], None],
        known: Container[torch.optim.Optimizer],
        other_stepped: Callable[[torch.optim.Optimizer, Any, Any], None],
    ) -> None:
        self._clock = clock
        self._patches = patches
        self._listen = listen
        self._end_step = end_step
        self._known = known
        self._other_stepped = other_stepped
        self._removals: list[Callable[[], None]] = []
        self._leader: Callable[[], torch.optim.Optimizer | None] = lambda: None
        """Weak reference to the leading optimizer, in C: a call of it makes no frame."""
        self._before_last = 0
        """Plain steps of the group before its last one, whose end is read."""
        self._others = self._others_left = 0
        """Expected steps of other optimizers in one step, and how many of them are still to come."""
        self._sequence: Callable[[], int] = lambda: 0
        """Number of autograd's next operation on this thread."""
        self._at_begin = 0
        """Number of autograd's next operation at the begin of the group."""
        self.are_running = False
        """True while the hooks are absent."""

    def install(self) -> None:
        """Put the hooks of optimizers in place."""
        import torch

        self._sequence = torch._C._autograd._get_sequence_nr
        self._removals = self._listen()

    def remove(self) -> None:
        """Remove them, in plain steps too."""
        self._remove_listeners()
        if self.are_running:
            self.are_running = False
            module_calls.resume()

    def begin(self, steps: int, leader: torch.optim.Optimizer, others: int) -> None:
        """The next ``steps`` steps of this optimizer are a group of plain steps. 5 µs if the hooks are still there.

        others  most steps of other optimizers that each of them has: those of a GAN's second one
        """
        self._before_last = steps - 1
        if self._leader() is not leader:
            self._leader = weakref.ref(leader)
        self._others = self._others_left = others
        self._at_begin = self._sequence()
        self._clock.begin_plain_steps()
        if not self.are_running:
            self.are_running = True
            self._patches.pause()
            module_calls.pause()
            self._remove_listeners()
            self._removals = [optimizer_calls.after(self._after_optimizer)]

    def end(self) -> None:
        """Put all hooks back. Does nothing if they are there."""
        if self.are_running:
            self.are_running = False
            self._patches.resume()
            module_calls.resume()
            self._remove_listeners()
            self._removals = self._listen()

    def interrupt(self) -> None:
        """The training does something else than steps, within a group: the hooks are needed again."""
        if self.are_running and self._clock.is_training_thread():
            self.end()
            # Autograd numbers each operation with gradients. No new one: no forward pass began since the step's end.
            ends = self._clock.plain_ends
            at_end = ends[-1] if ends else self._at_begin
            self._clock.hooks_are_back(between_steps=self._sequence() == at_end)

    def _remove_listeners(self) -> None:
        while self._removals:
            self._removals.pop()()

    # Between the kernels of a training each call of a Python function takes up to 1 µs, so this one calls none.

    @guarded("optimizer hook")
    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        clock = self._clock
        if get_ident() != clock.thread and not clock.is_training_thread():
            return
        if self._leader() is optimizer:
            ends = clock.plain_ends
            if len(ends) < self._before_last:
                ends.append(self._sequence())
                clock.step += 1
                self._others_left = self._others
            else:
                self._end_step()
        elif self._others_left > 0 and optimizer in self._known:
            self._others_left -= 1
        else:
            self.interrupt()
            self._other_stepped(optimizer, args, kwargs)
