"""Records whether a number that is read from a tensor is an integer. The driver sees only bytes, which may be either type."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from vramscope.guard import guarded

MOST: Final = "_vramscope_most"
"""Attribute of a tensor with one number: the largest that it can be, and PyTorch's count of changes in place when it was noted."""
METHODS: Final = ("item", "tolist", "__int__", "__float__", "__index__")
"""Methods of tensors that return Python numbers."""


class _Reading(threading.local):
    is_float: bool | None = None
    most: int | None = None


_reading = _Reading()


def reads_float() -> bool | None:
    """Return whether this thread is reading a floating-point tensor; None if no method of a tensor is running."""
    return _reading.is_float


def most() -> int | None:
    """Return the largest number that this thread can be reading, where it counts the elements of a mask; else None."""
    return _reading.most


@guarded("the types of numbers")
def install() -> None:
    """Wrap the methods of tensors in this process, to note the type of each tensor that is read."""
    import torch

    for name in METHODS:
        setattr(torch.Tensor, name, _noting(getattr(torch.Tensor, name)))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Any, *arguments: Any, **options: Any) -> Any:
        before = _reading.is_float, _reading.most
        _reading.is_float, _reading.most = self.is_floating_point(), _most_of(self)
        try:
            return method(self, *arguments, **options)
        finally:
            _reading.is_float, _reading.most = before

    return functools.wraps(method)(read)


def _most_of(tensor: Any) -> int | None:
    found = getattr(tensor, MOST, None)
    if found is None or tensor.is_inference() or tensor._version != found[1]:
        return None
    most: int = found[0]
    return most
