"""How many rows the batch has that runs: from the arguments of the outermost module on the stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from vramscope.oom.stack import given_to, module_of

if TYPE_CHECKING:
    import torch

MOST: Final = 64
"""things in a container that are looked at"""


def rows_of(frames: Iterable[FrameType]) -> int | None:
    """``frames``: innermost first. None where no module runs, or none was given a tensor."""
    # A forward may bind its arguments anew (DataParallel's to its parts of the batch); the call around it, which stands first,
    # does not.
    for frame in reversed(list(frames)):
        module = module_of(frame)
        if module is None:
            continue
        tensor = _first(given_to(frame))
        if tensor is not None:
            order = getattr(module, "batch_first", True) is False and tensor.dim() == 3
            return int(tensor.shape[1 if order else 0])
    return None


def _first(values: list[Any]) -> torch.Tensor | None:
    """The first tensor that has rows; containers are opened, two levels deep."""
    import torch

    for _ in range(3):
        for value in values:
            if issubclass(type(value), torch.Tensor) and value.dim():
                return value
        values = [inner for value in values[:MOST] for inner in _inside(value)[:MOST]]
    return None


def _inside(value: Any) -> list[Any]:
    kind = type(value)  # (lazy proxies run code when they are asked for their class)
    if issubclass(kind, Mapping):
        return list(value.values())
    return list(value) if issubclass(kind, (list, tuple)) else []
