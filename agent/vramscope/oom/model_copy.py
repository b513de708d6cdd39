"""A copy of a model, of its weights or of the optimizer's state, that ``copy.deepcopy`` was making when memory ran out.

An average of the weights, the best state so far, or a snapshot to return to is often made so. What is still to be copied is known
exactly: the copies that exist are in the function's own table.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.memory.optimizer_states import tensors_in
from vramscope.memory.tensor_bytes import storages
from vramscope.oom.other_models import DICTS, is_state_dict
from vramscope.process.frames import locals_of

if TYPE_CHECKING:
    from types import FrameType

    import torch

DEPTH: Final = 5
"""Levels of containers that are opened, as in ``{"optimizer": {"state": {0: {"exp_avg": [...]}}}}``."""
WEIGHTS: Final = "the model's weights"
STATE: Final = "the optimizer's state"


class ModelCopy(NamedTuple):
    """A copy that is being made on one device."""

    name: str
    """Class of the model; of a dict WEIGHTS, STATE, or both."""
    whole_bytes: int
    waiting_bytes: int
    """The part that is not copied yet, with the tensor whose copy failed."""


def copy_in_progress(
    frames: Iterable[FrameType], device: int, owned: Collection[int]
) -> tuple[ModelCopy | None, list[torch.Tensor]]:
    """The outermost copy of a model or of weights in these frames, and the tensors of a dict that are copied already.

    (None, []) where none is being copied. What is copied may be a part of something else: of an object, of a list of models.

    frames  innermost first
    owned   storages that have an owner. A dict without any of them is no copy of weights or state
    """
    code = copy.deepcopy.__code__
    calls = [locals_of(frame) for frame in frames if frame.f_code is code]
    done = calls[0].get("memo") if calls else None
    done = done if type(done) is dict else {}
    for call in reversed(calls):
        found = _copy_of(call.get("x"), done, device, owned)
        if found is not None:
            return found
    return None, []


def _copy_of(
    source: Any, done: dict[int, Any], device: int, owned: Collection[int]
) -> tuple[ModelCopy, list[torch.Tensor]] | None:
    import torch

    sizes: dict[int, int] = {}
    waiting, made = 0, []
    for tensor in _tensors_of(source):
        parts = dict(storages(tensor, device))
        sizes.update(parts)
        if id(tensor) in done:
            made.append(done[id(tensor)])
        elif parts:
            waiting += tensor.nbytes if tensor.layout is torch.strided else sum(parts.values())
    is_model = _is_model(source)
    if not waiting or not (is_model or any(key in owned for key in sizes)):
        return None
    whole = sum(sizes.values())
    name = type(source).__name__ if is_model else _name_of(source)
    return ModelCopy(name, whole, min(whole, waiting)), [] if is_model else made


def _is_model(source: Any) -> bool:
    import torch

    return issubclass(type(source), torch.nn.Module)  # isinstance runs the code of a proxy's class


def _name_of(source: Any) -> str:
    """What a dict has: weights, a state, or both."""
    inner = list(source.values())
    if is_state_dict(source):
        return STATE
    return f"{WEIGHTS} and {STATE}" if any(is_state_dict(one) for one in inner) else WEIGHTS


def _tensors_of(source: Any) -> Iterator[Any]:
    if _is_model(source):
        yield from source.parameters()
        yield from source.buffers()
    elif type(source) in DICTS:
        yield from tensors_in(source, DEPTH)
