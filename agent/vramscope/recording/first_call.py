"""Hears of the first call of a module that builds a graph, whatever its model, so that the first forward is recorded.

Which model trains is known at the first backward pass at the latest. An out-of-memory error in the first forward comes before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramscope.guard import guarded
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock


class FirstCall:
    """Calls ``then`` once, on the training thread, before the first call of a module with gradients on a process that uses CUDA.

    Until then, or until :meth:`end`, each call of a module costs some µs.
    """

    def __init__(self, clock: StepClock, then: Callable[[], None]) -> None:
        import torch

        self._torch, self._clock, self._then = torch, clock, then
        self._end: Callable[[], None] | None = None
        self._module: Callable[[], Any] = lambda: None

    def listen(self) -> None:
        self._end = module_calls.listen_to_all(CallListener(guarded("the first forward")(self._called)))

    def end(self) -> None:
        """Listen no more. Does nothing the second time."""
        if self._end is not None:
            self._end()
            self._end = None

    def model(self) -> list[Any]:
        """The module that was called, if it lives: the model, as far as one call shows."""
        module = self._module()
        return [] if module is None else [module]

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        builds_graph = self._torch.is_grad_enabled() and next(module.parameters(), None) is not None
        if not builds_graph or not self._torch.cuda.is_initialized() or not self._clock.is_training_thread():
            return
        self.end()
        self._module = weakref.ref(module)
        if not self._clock.counters and self._clock.find_devices is not None:
            self._clock.find_devices()
        self._then()
