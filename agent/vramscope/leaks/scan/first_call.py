"""Hears the first call of any module with parameters: where a model's own forward is never called, a forward begins with it.

``vae.encode(x)`` and ``vae.decode(z)`` call the model's parts alone. A hook that all modules have would cost each call some µs, so
it is there only while a look waits for it, and never where something was compiled, which could be compiled anew for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from vramscope.guard import guarded
from vramscope.leaks.scan.tensors import parameters_of
from vramscope.steps.root_modules import ModuleHook


class FirstCall:
    """``listen``, and ``heard(module)`` is called once, with gradients on and outside of any backward; or ``stop`` before."""

    def __init__(self, heard: Callable[[Any], None]) -> None:
        import torch

        self._heard = heard
        self._hook = ModuleHook(guarded("the first call of a module")(self._called))
        self._register = torch.nn.modules.module.register_module_forward_pre_hook
        self._grad_enabled = torch.is_grad_enabled
        self._graph_task = torch._C._current_graph_task_id
        self._handle: Any = None

    def listen(self) -> None:
        if self._handle is None and not _something_is_compiled():
            self._handle = self._register(self._hook)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, module: Any, args: Any) -> None:
        if self._grad_enabled() and self._graph_task() == -1 and parameters_of(module):
            self._heard(module)


def _something_is_compiled() -> bool:
    counted = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counted.get("frames"))
