"""Detects the first call of any module with parameters. Where a model's own forward is never called, a forward begins there.

``vae.encode(x)`` and ``vae.decode(z)`` call the model's parts alone. Watching all modules costs each call some µs, so it happens
only while a scan waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramscope.guard import guarded
from vramscope.leaks.scan.tensors import parameters_of
from vramscope.process.module_calls import CallListener, module_calls


class AnyModuleCall:
    """After ``listen`` it calls ``called(module)`` at each call with gradients on and outside any backward, until ``stop``."""

    def __init__(self, on_call: Callable[[Any], None]) -> None:
        import torch

        self._on_call = on_call
        self._listener = CallListener(guarded("the first call of a module")(self._called))
        self._grad_enabled = torch.is_grad_enabled
        self._graph_task = torch._C._current_graph_task_id
        self._end: Callable[[], None] | None = None

    def listen(self) -> None:
        if self._end is None:
            self._end = module_calls.listen_to_all(self._listener)

    def stop(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None

    def _called(self, module: Any, args: Any, kwargs: Any) -> None:
        if self._grad_enabled() and self._graph_task() == -1 and parameters_of(module):
            self._on_call(module)
