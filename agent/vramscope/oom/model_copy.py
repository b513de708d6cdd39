"""A copy of a model, or of a dict of its weights, that ``copy.deepcopy`` was making when memory ran out.

An average of the weights or the best state so far is often made so. What is still to be copied is known exactly: the copies
that exist are in the function's own table.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.oom.weight_copies import DICTS
from vramscope.process.frames import locals_of

if TYPE_CHECKING:
    from types import FrameType


class ModelCopy(NamedTuple):
    """A copy that is being made on one device."""

    name: str
    """Class of the model; ``the model's weights`` for a dict of them."""
    whole_bytes: int
    waiting_bytes: int
    """The part that is not copied yet, with the tensor whose copy failed."""


def copy_in_progress(frames: Iterable[FrameType], device: int) -> ModelCopy | None:
    """The outermost copy in these frames, innermost first; None: no model and no weights are being copied."""
    code = copy.deepcopy.__code__
    calls = [locals_of(frame) for frame in frames if frame.f_code is code]
    if not calls:
        return None
    source, done = calls[-1].get("x"), calls[0].get("memo")
    done = done if type(done) is dict else {}
    sizes = {}
    waiting = 0
    for tensor in _tensors_of(source):
        if tensor.is_cuda and tensor.device.index == device:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            waiting += 0 if id(tensor) in done else tensor.nbytes
    if not sizes or not waiting:
        return None
    whole = sum(sizes.values())
    name = "the model's weights" if type(source) in DICTS else type(source).__name__
    return ModelCopy(name, whole, min(whole, waiting))


def _tensors_of(source: Any) -> Iterator[Any]:
    import torch

    if isinstance(source, torch.nn.Module):
        yield from source.parameters()
        yield from source.buffers()
    elif type(source) in DICTS:  # another mapping may run the user's code
        yield from (value for value in list(source.values()) if isinstance(value, torch.Tensor))
