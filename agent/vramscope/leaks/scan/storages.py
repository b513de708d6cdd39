"""Bytes of tensors, each storage once, as the allocator counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vramscope.memory.peak_counters import block_bytes
from vramscope.memory.tensor_bytes import address_of
from vramscope.process import type_info

if TYPE_CHECKING:
    import torch

Storages = dict[int, int]
"""Bytes of each storage, by its identity."""

_PRETENDERS: Final = frozenset(("FakeTensor", "FunctionalTensor", "GradTrackingTensor"))
"""Tensors of a compiler or of torch.func, which own no memory."""


def storage_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """(identity, bytes) of a tensor's storage; None where it has no memory of its own or its device is gone.

    About 1 µs. CUDA storages are rounded up to the allocator's blocks of 512 bytes. Their identity is their address, which finds
    them among the events of a recording.
    """
    try:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if not size or storage.device.type == "meta":
            return None
        if storage.device.type == "cuda":
            address = address_of(tensor)
            return (address, block_bytes(size)) if address else _of_sparse(tensor)
        return storage._cdata, size
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # the last of a lazy parameter
        return _of_sparse(tensor)


def _of_sparse(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Storage of a sparse matrix's values, with the bytes of its indices. None for a wrapper class or a nested tensor: the tensors
    in it count by themselves."""
    import torch

    try:
        with torch.no_grad():
            if tensor.layout == torch.sparse_coo:
                parts = [tensor._values(), tensor._indices()]
            elif tensor.layout == torch.sparse_csr:
                parts = [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
            elif tensor.layout == torch.sparse_csc:
                parts = [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
            else:
                return None
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    found = [one for part in parts if part.layout == torch.strided and (one := storage_of(part)) is not None]
    return (found[0][0], sum(size for _, size in found)) if found else None


def add(storages: Storages, tensor: torch.Tensor) -> None:
    found = storage_of(tensor)
    if found is not None:
        storages[found[0]] = found[1]


class TensorKinds:
    """Types of tensors that own memory. By type, never isinstance: a proxy's ``__class__`` can run code."""

    def __init__(self) -> None:
        import torch

        self._base = torch.Tensor
        self._known: dict[type, bool] = {}

    def owns_memory(self, kind: type) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = (
                issubclass(kind, self._base) and type_info.name_of(kind) not in _PRETENDERS and not self._wraps(kind)
            )
            self._known[kind] = known
        return known

    def _wraps(self, kind: type) -> bool:
        """True for a class such as DTensor: its own storage is empty, and the tensors in it count by themselves."""
        for base in type_info.bases(kind):
            if base is self._base:
                return False
            if "__torch_dispatch__" in type_info.namespace(base):
                return True
        return False


def describe(tensors: list[Any]) -> list[str]:
    """``12 x float32[32, 512] on cuda:0`` for each shape, the most frequent first, at most four."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        try:
            text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
        except (RuntimeError, NotImplementedError):
            continue
        counts[text] = counts.get(text, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return [f"{count} x {text}" for text, count in ordered[:4]]
