"""What an exception that is being handled keeps, where memory runs out again in its ``except`` block.

An exception has its traceback, that one the frames of the attempt that failed, and these the inputs of layers, whose graphs have
all that the forward had made. Until the block is left nothing of it goes: neither ``zero_grad()`` nor ``empty_cache()`` helps.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramscope import wire
from vramscope.graphs import storages
from vramscope.graphs.roots import is_library, is_own, locals_of
from vramscope.graphs.storages import Storages
from vramscope.graphs.walk import Budget, tensors_in, walk

if TYPE_CHECKING:
    import torch

LEAST_BYTES: Final = 1 << 20
ADVICE: Final = (
    "leave the except block before trying again (set a flag in it, and retry below): the exception keeps the frames of the "
    "attempt that failed, and these all that its forward had made"
)


def kept_by_handled(thread: int, owned: Iterable[torch.Tensor | None], step: int) -> wire.Leak | None:
    """Of the exception that this thread is handling; None where there is none, or where it keeps next to nothing.

    owned   parameters, gradients and other tensors that are there anyway

    Some ms: the graph behind each tensor in the frames is walked once.
    """
    fault = _handled_on(thread)
    if fault is None:
        return None
    running = list(_running_on(thread))
    stands = set(map(id, running))
    kept: Storages = {}
    budget, seen = Budget(), set()
    where: FrameType | None = None
    step_back = fault.__traceback__
    while step_back is not None:
        frame = step_back.tb_frame
        if id(frame) not in stands:
            for tensor in _tensors_of(frame):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    _add_with_graph(kept, tensor, budget)
        elif not is_own(frame.f_code.co_filename) and not is_library(frame.f_code.co_filename):
            where = frame
        step_back = step_back.tb_next
    anyway: Storages = {}
    for one in owned:
        if one is not None:
            storages.add(anyway, one)
    for frame in running:
        for tensor in _tensors_of(frame):
            storages.add(anyway, tensor)
    held = sum(size for storage, size in kept.items() if storage not in anyway)
    if held < LEAST_BYTES:
        return None
    kind = type(fault).__name__
    return wire.Leak(
        kind="overlap-unfreed",
        name=f"{kind} in its except block",
        holder=f"the {kind} that is being handled, by the frames of its traceback",
        chain=[f"{kind}.__traceback__", "frames of the attempt that failed", "tensors, and the graphs behind them"],
        file=where.f_code.co_filename if where is not None else None,
        line=where.f_lineno if where is not None else None,
        function=where.f_code.co_name if where is not None else None,
        count=len(kept.keys() - anyway.keys()),
        first_step=step,
        last_step=step,
        held_bytes=held,
        exclusive_bytes=held,
        peak_effect="it was held when memory ran out",
        advice=ADVICE,
    )


def _handled_on(thread: int) -> BaseException | None:
    told: Any = sys._current_exceptions().get(thread)
    fault: BaseException | None = told[1] if isinstance(told, tuple) else told  # (a tuple up to Python 3.11)
    return fault


def _running_on(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _tensors_of(frame: FrameType) -> Collection[torch.Tensor]:
    return [tensor for value in locals_of(frame).values() for tensor in tensors_in(value) if tensor.is_cuda]


def _add_with_graph(kept: Storages, tensor: torch.Tensor, budget: Budget) -> None:
    storages.add(kept, tensor)
    if tensor.grad_fn is not None:
        kept.update(walk(tensor.grad_fn, budget).saved)
