"""Sparse tensors of a dry run: ``coalesce()`` keeps every entry, as if no two had the same place."""

from __future__ import annotations

import threading
from typing import Any

from vramscope.guard import guarded
from vramscope.process import live_objects
from vramscope.process.patching import Patches


class _Current(threading.local):
    entries: int | None = None


_current = _Current()


def now() -> int | None:
    """Return the number of entries that this thread coalesces. None: unknown.

    A product with a sparse tensor coalesces it without a call of ``coalesce()``, in the backward pass too. Which one is known if
    all sparse tensors on the device have equally many entries.
    """
    if _current.entries is not None:
        return _current.entries
    import torch

    tensors, _ = live_objects.of_types((torch.Tensor, torch.nn.Parameter))
    counts = {count for one in tensors if (count := _entries(one)) is not None}
    return counts.pop() if len(counts) == 1 else None


@guarded("the sparse tensors")
def install() -> None:
    """Note each call of ``coalesce()`` from now on."""
    import torch

    def coalesce(original: Any, tensor: Any) -> Any:
        before, _current.entries = _current.entries, _entries(tensor)
        try:
            return original(tensor)
        finally:
            _current.entries = before

    Patches().wrap(torch.Tensor, "coalesce", coalesce)


@guarded("the entries of a sparse tensor")
def _entries(tensor: Any) -> int | None:
    import torch

    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # no code of the user's classes and modes
        return int(tensor._nnz()) if tensor.is_sparse and tensor.is_cuda else None
