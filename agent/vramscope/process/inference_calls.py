"""Counts the calls of models that nobody knows, to find out that a program runs a model without a training.

``vramscope run`` attaches by it: it listens from the time when CUDA is initialized until a training begins or CALLS were counted.
An agent that was attached before the model was made finds the model by it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.process.first_parameter import first_parameter
from vramscope.process.module_calls import CallListener, module_calls

CALLS: Final = 16
"""Number of outermost calls, without captured ones and those on fake tensors. A program that tries its model out before it makes an
optimizer needs fewer."""


def listen(begin: Callable[[], None], is_traced: Callable[[], bool]) -> Callable[[], None]:
    """Call ``begin`` before the CALLS-th outermost call of a module with weights on a GPU. Returns what ends the listening.

    It does nothing where the program has imported the agent: then it attaches when it wants to. Never raises. ``is_traced`` returns
    whether a call computes with fake tensors.
    """

    def reached() -> None:
        if "vramscope.agent" not in sys.modules:
            begin()

    with guarded("listening to the calls of models"):
        return count_calls(reached, lambda module: _is_on_gpu(module) and not _is_captured() and not is_traced())
    return lambda: None


def count_calls(reached: Callable[[], None], counts: Callable[[Any], bool]) -> Callable[[], None]:
    """Call ``reached`` once, before the CALLS-th outermost call of a module that ``counts``. Returns what ends the counting."""
    depths: dict[int, int] = {}
    """Number of running calls by thread."""
    calls = 0

    @guarded("the first calls of a model")
    def before(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal calls
        thread = get_ident()
        depth = depths.get(thread, 0)
        depths[thread] = depth + 1
        if depth or not counts(module):
            return
        calls += 1
        if calls >= CALLS:
            end()
            reached()

    def after(module: Any, args: Any = None, output: Any = None) -> None:
        thread = get_ident()
        depths[thread] = max(0, depths.get(thread, 0) - 1)

    end = module_calls.listen_to_all(CallListener(before, after, after))
    return end


def has_weights(module: Any) -> bool:
    """True for a module with parameters whose call is not captured in a CUDA graph."""
    return first_parameter(module) is not None and not _is_captured()


def _is_captured() -> bool:
    """An error in a capture would end it."""
    import torch

    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _is_on_gpu(module: Any) -> bool:
    weight = first_parameter(module)
    return weight is not None and weight.device.type == "cuda"
