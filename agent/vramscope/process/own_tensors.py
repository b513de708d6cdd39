"""Lists the agent's own tensors, which scans for leaks must ignore."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_marked: Final[list[weakref.ref[torch.Tensor]]] = []


def mark(tensor: torch.Tensor) -> None:
    """Mark a tensor on the CPU, and all views of it, as the agent's own."""
    _marked[:] = [known for known in _marked if known() is not None]
    _marked.append(weakref.ref(tensor))


def storages() -> frozenset[int]:
    """Return the identities of the storages of marked tensors."""
    living = [tensor for known in _marked if (tensor := known()) is not None]
    return frozenset(tensor.untyped_storage()._cdata for tensor in living)
