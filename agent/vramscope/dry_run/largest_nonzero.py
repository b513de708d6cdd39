"""``nonzero()`` of a dry run: every element counts as non-zero, or as many as the dry run knows or assumes.

``x[mask]``, ``masked_select``, ``torch.where(mask)`` and assignments by mask call it, so that all of them get the largest
result that they can have. Without it they would be empty on a device that computes nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from vramscope.dry_run import host_masks
from vramscope.guard import guarded

if TYPE_CHECKING:
    import torch

_library: Any = None


@guarded("the largest nonzero()")
def install(selected: Callable[[FrameType | None, int], int]) -> None:
    """Replace PyTorch's CUDA kernel in this process. ``selected`` receives the frame of each call, and returns the size."""
    global _library
    import torch

    def nonzero(tensor: torch.Tensor) -> torch.Tensor:
        rows = host_masks.selected(tensor)
        if rows is None:
            rows = selected(sys._getframe().f_back, tensor.numel())
        return tensor.new_empty((tensor.dim(), rows), dtype=torch.int64).t()

    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel was there is the purpose
        _library.impl("nonzero", nonzero, "CUDA")
