"""The agent's own tensors, whose holders no scan has to find."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_marked: Final[list[weakref.ref[torch.Tensor]]] = []


def mark(tensor: torch.Tensor) -> None:
    """Declare a tensor on the CPU, and all views of it, to be the agent's."""
    _marked[:] = [known for known in _marked if known() is not None]
    _marked.append(weakref.ref(tensor))


def storages() -> frozenset[int]:
    """Return the identities of their storages."""
    living = [tensor for known in _marked if (tensor := known()) is not None]
    return frozenset(tensor.untyped_storage()._cdata for tensor in living)
