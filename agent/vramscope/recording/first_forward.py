"""Finds the first call of a module with gradients, so that the first forward pass is recorded.

The trained model may be unknown until the first backward pass. An out-of-memory error in the first forward pass comes before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.process.first_parameter import first_parameter
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock


MOST_CALLS: Final = 10_000
"""Number of calls after which the search ends. Calls of inner modules count."""


class FirstForward:
    """Calls ``then`` once, on the training thread, before the first call of a module with gradients in a process that uses CUDA.

    Until then, or until :meth:`end`, each call of a module costs some µs. The search ends after MOST_CALLS, because a program
    that only runs inference never makes such a call.
    """

    def __init__(self, clock: StepClock, then: Callable[[], None]) -> None:
        import torch

        self._torch, self._clock, self._then = torch, clock, then
        self._end: Callable[[], None] | None = None
        self._module: Callable[[], Any] = lambda: None
        self._calls_left = MOST_CALLS

    def listen(self) -> None:
        self._end = module_calls.listen_to_all(CallListener(guarded("the first forward")(self._called)))

    def end(self) -> None:
        """Stop listening. Does nothing the second time."""
        if self._end is not None:
            self._end()
            self._end = None

    def model(self) -> list[Any]:
        """Return the module that was called, if it still exists. It is assumed to be the model."""
        module = self._module()
        return [] if module is None else [module]

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        self._calls_left -= 1
        if not self._calls_left:
            self.end()
        torch = self._torch
        if not torch.is_grad_enabled() or not torch.cuda.is_initialized() or not self._clock.is_training_thread():
            return
        if first_parameter(module) is None:
            return
        self.end()
        self._module = weakref.ref(module)
        if not self._clock.counters and self._clock.find_devices is not None:
            self._clock.find_devices()
        self._then()
