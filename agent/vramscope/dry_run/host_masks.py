"""Masks that were copied from the host: how many elements they select is known, although the device computes nothing."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.guard import guarded

if TYPE_CHECKING:
    import torch

MOST_BYTES: Final = 1024 * 1024
"""Size up to which the elements of a tensor are kept on the host."""
MOST_MASKS: Final = 256
"""Number of tensors whose elements are kept."""


class _Copied(NamedTuple):
    storage: Any
    """Weak reference to the storage on the device."""
    version: int
    """PyTorch's count of changes in place, after the copy."""
    host: torch.Tensor
    """The elements, with the layout of the copy."""


_copied: Final[dict[int, _Copied]] = {}
_mutex = threading.Lock()
_library: Any = None


@guarded("the masks of the host")
def install() -> None:
    """Note from now on which integers and truth values are copied to the device."""
    global _library
    import torch
    from torch._C import DispatchKey, DispatchKeySet

    same_kernel = DispatchKeySet(DispatchKey.XPU)  # one kernel serves all devices; its key for CUDA is ours from now on

    def _to_copy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        copy = torch.ops.aten._to_copy.default  # PyTorch has no ``ops`` yet when this is installed
        out: torch.Tensor = copy.redispatch(same_kernel, tensor, **options)
        if (
            tensor.is_cpu
            and out.is_cuda
            and not out.is_floating_point()
            and not out.is_complex()
            and 0 < out.nbytes <= MOST_BYTES
        ):
            _note(tensor, out)
        return out

    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another kernel was there is the purpose
        _library.impl("_to_copy", _to_copy, "CUDA")


@guarded("a mask of the host")
def _note(tensor: torch.Tensor, out: torch.Tensor) -> None:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    if out.is_inference() or out.storage_offset() or out.untyped_storage().nbytes() != out.nbytes:
        return
    host = torch.empty_strided(out.size(), out.stride(), dtype=out.dtype).copy_(tensor)
    storage = out.untyped_storage()
    with _mutex:
        _copied.pop(storage._cdata, None)
        _copied[storage._cdata] = _Copied(StorageWeakRef(storage), out._version, host)
        while len(_copied) > MOST_MASKS:
            del _copied[next(iter(_copied))]


@guarded("a mask of the host", default=None)
def selected(mask: torch.Tensor) -> int | None:
    """Return how many elements are not zero; None if the device may have changed them, or computed them."""
    with _mutex:
        found = _copied.get(mask.untyped_storage()._cdata)
    if found is None or found.storage.expired() or mask.is_inference() or mask._version != found.version:
        return None
    if mask.dtype != found.host.dtype:
        return None
    return int(found.host.as_strided(mask.size(), mask.stride(), mask.storage_offset()).count_nonzero())
