"""Sizes that depend on data, but have a bound: of ``unique()``, of ``bincount()`` with a minimum length, of ``mask.sum()``."""

from __future__ import annotations

import threading
from typing import Any, Final

from vramscope.dry_run import builtin_functions
from vramscope.dry_run.number_types import MOST
from vramscope.guard import guarded
from vramscope.process.patching import Patches

UNIQUE: Final = frozenset({"_unique2", "unique_dim", "unique_consecutive"})
"""Operations that read the number of different elements."""
BELOW_MINIMUM: Final = "numbers below the minlength of bincount()"
"""What a bincount with a minimum is assumed to count."""


class _Computed(threading.local):
    most: int | None = None
    has_minimum: bool = False


_computed = _Computed()


def most_different() -> int | None:
    """Return how many elements differ at most, in the ``unique()`` that this thread computes. None if it computes none."""
    return _computed.most


def has_minimum() -> bool:
    """Return whether this thread computes a ``bincount()`` with a ``minlength``."""
    return _computed.has_minimum


@guarded("the sizes of results")
def install() -> None:
    """Note each call of such functions from now on."""
    import torch

    def unique(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        before, _computed.most = _computed.most, _rows(tensor, kwargs.get("dim"))
        try:
            return original(tensor, *args, **kwargs)
        finally:
            _computed.most = before

    def unique_dim(original: Any, tensor: Any, dim: int, *args: Any, **kwargs: Any) -> Any:
        before, _computed.most = _computed.most, _rows(tensor, dim)
        try:
            return original(tensor, dim, *args, **kwargs)
        finally:
            _computed.most = before

    def bincount(original: Any, *args: Any, **kwargs: Any) -> Any:
        minimum = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        before, _computed.has_minimum = _computed.has_minimum, isinstance(minimum, int) and minimum > 0
        try:
            return original(*args, **kwargs)
        finally:
            _computed.has_minimum = before

    def total(original: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        _note_total(args[0] if args else kwargs.get("input"), found)
        return found

    patches = Patches()
    builtin_functions.wrap(patches, torch, "_unique2", unique)
    builtin_functions.wrap(patches, torch._VF, "unique_consecutive", unique)
    builtin_functions.wrap(patches, torch._VF, "unique_dim", unique_dim)
    for owner in (torch, torch.Tensor):
        builtin_functions.wrap(patches, owner, "bincount", bincount)
        builtin_functions.wrap(patches, owner, "sum", total)
        builtin_functions.wrap(patches, owner, "count_nonzero", total)


@guarded("the rows of a tensor")
def _rows(tensor: Any, dim: int | None) -> int | None:
    if not _is_plain(tensor) or not tensor.is_cuda or not (dim is None or -tensor.dim() <= dim < tensor.dim()):
        return None  # PyTorch refuses other arguments
    rows: int = tensor.numel() if dim is None else tensor.shape[dim]
    if dim is None and str(tensor.dtype) == "torch.bool":
        return max(1, rows // 2)  # the number of true elements is read, and then both values occur
    return rows


@guarded("the number of true elements")
def _note_total(mask: Any, found: Any) -> None:
    """Note on a number of true elements that it can be all of them."""
    if not (_is_plain(mask) and _is_plain(found)) or found.is_inference():
        return
    if str(mask.dtype) == "torch.bool" and mask.is_cuda and not found.dim():
        setattr(found, MOST, (mask.numel(), found._version))


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor of PyTorch. A class of the program, or a proxy of torch.fx, sees each question about it."""
    import torch

    return type(value) in (torch.Tensor, torch.nn.Parameter)
