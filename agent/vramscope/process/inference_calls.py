"""Finds out that a program runs a model on a GPU without a training: many calls of models, and no optimizer or backward pass.

``vramscope run`` uses it. It listens from the time when CUDA is initialized until a training begins or CALLS were counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.process.module_calls import CallListener, module_calls

CALLS: Final = 16
"""Number of outermost calls, without captured ones and those on fake tensors. A program that tries its model out before it makes an
optimizer needs fewer."""


def listen(begin: Callable[[], None], is_traced: Callable[[], bool]) -> Callable[[], None]:
    """Call ``begin`` before the CALLS-th outermost call of a module with weights on a GPU. Returns what ends the listening.

    It does nothing where the program has imported the agent: then it attaches when it wants to. Never raises. ``is_traced`` returns
    whether a call computes with fake tensors.
    """
    with guarded("listening to the calls of models"):
        return _listen(begin, is_traced)
    return lambda: None


def _listen(begin: Callable[[], None], is_traced: Callable[[], bool]) -> Callable[[], None]:
    import torch

    depths: dict[int, int] = {}
    """Number of running calls by thread."""
    calls = 0

    @guarded("the first calls of a model")
    def before(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal calls
        thread = get_ident()
        depth = depths.get(thread, 0)
        depths[thread] = depth + 1
        if depth or not _is_on_gpu(module):
            return
        if torch.cuda.is_current_stream_capturing() or is_traced():
            return  # an error there would end the capture, and fake tensors take no memory
        calls += 1
        if calls >= CALLS:
            end()
            if "vramscope.agent" not in sys.modules:
                begin()

    def after(module: Any, args: Any = None, output: Any = None) -> None:
        thread = get_ident()
        depths[thread] = max(0, depths.get(thread, 0) - 1)

    end = module_calls.listen_to_all(CallListener(before, after, after))
    return end


def _is_on_gpu(module: Any) -> bool:
    weight = next(module.parameters(), None)
    return weight is not None and weight.device.type == "cuda"
