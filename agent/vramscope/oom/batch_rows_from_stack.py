"""Rows of the running batch, from the arguments of the outermost module on the stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramscope.oom.error_stack import arguments_of, module_of

if TYPE_CHECKING:
    import torch

MOST: Final = 64
"""Elements of a container that are examined."""


def rows_of(frames: Iterable[FrameType]) -> int | None:
    """Number of rows; None where no module runs, or none has a tensor argument. ``frames``: innermost first."""
    # A forward may rebind its arguments (DataParallel does, to its parts of the batch). The call around it, which comes
    # first here, does not.
    for frame in reversed(list(frames)):
        module = module_of(frame)
        if module is None:
            continue
        tensor = _first(arguments_of(frame))
        if tensor is not None:
            order = getattr(module, "batch_first", True) is False and tensor.dim() == 3
            return int(tensor.shape[1 if order else 0])
    return None


def _first(values: list[Any]) -> torch.Tensor | None:
    """First tensor with rows, in the values or up to two containers deep."""
    import torch

    for _ in range(3):
        for value in values:
            if issubclass(type(value), torch.Tensor) and value.dim():
                return value
        values = [inner for value in values[:MOST] for inner in _inside(value)[:MOST]]
    return None


def _inside(value: Any) -> list[Any]:
    kind = type(value)  # lazy proxies run code when __class__ is read
    if issubclass(kind, Mapping):
        return list(value.values())
    return list(value) if issubclass(kind, (list, tuple)) else []
