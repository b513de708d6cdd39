"""Memory that exceptions retain: one whose ``except`` block runs out of memory again, and one that was caught and is
still referenced.

An exception references its traceback, the traceback the frames of the failed attempt, and these the inputs of layers,
whose graphs keep all that the forward allocated. Until the block is left, or the exception is freed, all of it stays.
Neither ``zero_grad()`` nor ``empty_cache()`` helps.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.autograd.graph_walk import NodeBudget, tensors_in, walk
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.oom.error_chain import chain_of
from vramscope.process.frames import is_library, is_own, locals_of
from vramscope.protocol import messages

if TYPE_CHECKING:
    import torch

LEAST_BYTES: Final = 1 << 20
ADVICE: Final = (
    "set a flag in the except block, and retry below it. Within the block, the exception retains the frames of the failed attempt, "
    "and with them all that its forward allocated"
)

LIVING_ADVICE: Final = (
    "keep str(error), or error.with_traceback(None). The exception retains the frames of the failed attempt, and with them all "
    "that its forward allocated"
)
MOST_IN_LIST: Final = 1000


def kept_by_handled(thread: int, owned: Iterable[torch.Tensor | None], step: int) -> messages.Leak | None:
    """Leak by the exception that this thread is handling; None where there is none, or where it retains next to nothing.

    owned   parameters, gradients and other tensors that stay anyway

    A few ms: the graph behind each tensor in the frames is walked once.
    """
    fault = _handled_on(thread)
    if fault is None:
        return None
    running = list(_running_on(thread))
    kept, where, _ = _kept_by(fault, running, _anyway(owned, running))
    if sum(kept.values()) < LEAST_BYTES:
        return None
    kind = type(fault).__name__
    return _as_leak(
        f"{kind} in its except block",
        f"the {kind} that is being handled",
        kind,
        kept,
        where,
        where and where.f_lineno,
        step,
        ADVICE,
    )


def kept_by_living(
    faults: Iterable[BaseException], thread: int, owned: Iterable[torch.Tensor | None], step: int
) -> messages.Leak | None:
    """Leak by the exception that retains most, of those that were caught and are still referenced.

    A variable, a list or a notebook's ``sys.last_value`` may have it. Exceptions that are being handled are left out.
    """
    running = list(_running_on(thread))
    handled = _handled_on(thread)
    current = set() if handled is None else {id(one) for one in chain_of(handled)}
    anyway = _anyway(owned, running)
    most: tuple[int, BaseException, Storages, FrameType | None, int | None] | None = None
    for fault in faults:
        if fault.__traceback__ is None or id(fault) in current:
            continue
        kept, where, line = _kept_by(fault, running, anyway)
        size = sum(kept.values())
        if size >= LEAST_BYTES and (most is None or size > most[0]):
            most = size, fault, kept, where, line
    if most is None:
        return None
    _, fault, kept, where, line = most
    kind = type(fault).__name__
    name = _name_of(fault, running) or f"a {kind} that was caught"
    return _as_leak(
        name, f"the {kind} that was caught and is still referenced", kind, kept, where, line, step, LIVING_ADVICE
    )


def _anyway(owned: Iterable[torch.Tensor | None], running: Iterable[FrameType]) -> Storages:
    anyway: Storages = {}
    for one in owned:
        if one is not None:
            storages.add(anyway, one)
    for frame in running:
        for tensor in _tensors_of(frame):
            storages.add(anyway, tensor)
    return anyway


def _kept_by(
    fault: BaseException, running: Iterable[FrameType], anyway: Storages
) -> tuple[Storages, FrameType | None, int | None]:
    """Storages that only the exception's frames lead to; the user's frame that still runs, or else the outermost of the user's; its
    failed line.
    """
    live = set(map(id, running))
    kept: Storages = {}
    budget, seen = NodeBudget(), set()
    where: FrameType | None = None
    line: int | None = None
    step_back = fault.__traceback__
    while step_back is not None:
        frame = step_back.tb_frame
        own = not is_own(frame.f_code.co_filename) and not is_library(frame.f_code.co_filename)
        if id(frame) not in live:
            for tensor in _tensors_of(frame):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    _add_with_graph(kept, tensor, budget)
        if own and (where is None or id(frame) in live):
            where, line = frame, step_back.tb_lineno
        step_back = step_back.tb_next
    return {storage: size for storage, size in kept.items() if storage not in anyway}, where, line


def _as_leak(
    name: str, holder: str, kind: str, kept: Storages, where: FrameType | None, line: int | None, step: int, advice: str
) -> messages.Leak:
    size = sum(kept.values())
    return messages.Leak(
        kind="overlap-unfreed",
        name=name,
        holder=f"{holder}, by the frames of its traceback",
        chain=[f"{kind}.__traceback__", "frames of the failed attempt", "tensors and their graphs"],
        file=where.f_code.co_filename if where is not None else None,
        line=line,
        function=where.f_code.co_name if where is not None else None,
        count=len(kept),
        first_step=step,
        last_step=step,
        held_bytes=size,
        exclusive_bytes=size,
        peak_effect="retained when memory ran out",
        advice=advice,
    )


def _name_of(fault: BaseException, running: Iterable[FrameType]) -> str | None:
    """Outermost variable that has it, or a list with it."""
    outwards = [frame for frame in running if not is_library(frame.f_code.co_filename)][::-1]
    places = [locals_of(frame) for frame in outwards] + [frame.f_globals for frame in outwards]
    for values in places:
        for name, value in list(values.items()):
            if value is fault or (type(value) in (list, tuple) and any(one is fault for one in value[:MOST_IN_LIST])):
                return str(name)
    last = next((name for name in ("last_exc", "last_value") if getattr(sys, name, None) is fault), None)
    return None if last is None else f"sys.{last}"


def _handled_on(thread: int) -> BaseException | None:
    current: Any = sys._current_exceptions().get(thread)
    fault: BaseException | None = current[1] if isinstance(current, tuple) else current  # a tuple up to Python 3.11
    return fault


def _running_on(thread: int) -> Iterator[FrameType]:
    """Frames without the agent's own: a list of them in one of them would be a cycle and delay the freeing of its variables."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if not is_own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _tensors_of(frame: FrameType) -> Collection[torch.Tensor]:
    return [tensor for value in locals_of(frame).values() for tensor in tensors_in(value) if tensor.is_cuda]


def _add_with_graph(kept: Storages, tensor: torch.Tensor, budget: NodeBudget) -> None:
    storages.add(kept, tensor)
    if tensor.grad_fn is not None:
        kept.update(walk(tensor.grad_fn, budget).saved)
