"""Whether known tensors explain all memory that PyTorch has handed out on the GPU, to the byte.

Then no other tensor on a GPU exists, so that nothing has to be searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from vramscope.memory.cublas_workspaces import CublasWorkspaces
from vramscope.memory.optimizer_states import tensors_in
from vramscope.memory.peak_counters import share_peak_counters
from vramscope.memory.tensor_bytes import address_of, unwrapped

if TYPE_CHECKING:
    import torch


def is_explained(*sources: Callable[[], Iterable[torch.Tensor]]) -> bool:
    """Return whether the tensors of the first sources take exactly the bytes that were requested from PyTorch, apart from
    the workspaces that PyTorch itself requested for cuBLAS.

    A source is called only if those before it do not explain all. About 1 µs a tensor. False also if anything is unknown: a
    tensor that is no ordinary one, or a PyTorch that does not count requested bytes.
    """
    requested = _requested_bytes()
    if requested is None:
        return False
    unexplained = requested - (CublasWorkspaces().requested_bytes() or 0)
    known: dict[int, int] = {}
    for source in sources:
        for tensor in source():
            storage = _storage_on_gpu(tensor)
            if storage is None:
                return False
            address, size = storage
            known[address] = size
        if sum(known.values()) == unexplained:
            return True
    return False


def tensors_of(
    models: Collection[torch.nn.Module], optimizers: Collection[torch.optim.Optimizer]
) -> Iterator[torch.Tensor]:
    """Yield the parameters of models, their gradients and buffers, and the state of optimizers."""
    for model in list(models):
        for parameter in model.parameters():
            yield parameter
            # functional_call puts results into a module for a moment, and PyTorch warns when their gradient is read
            if parameter.is_leaf and parameter.grad is not None:
                yield parameter.grad
        yield from model.buffers()
    for optimizer in list(optimizers):
        for state in list(optimizer.state.values()):
            yield from tensors_in(state)


def _requested_bytes() -> int | None:
    """Return the bytes that the program has requested and not freed, on all devices; None if PyTorch does not count them."""
    import torch

    read = share_peak_counters().read
    counted = [read(device).get("requested_bytes") for device in range(torch.cuda.device_count())]
    return sum(one["all"]["current"] for one in counted if one) if all(counted) else None


def _storage_on_gpu(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the address and the bytes of a tensor's storage; zeros on another device. None for a tensor of another kind."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    if not tensor.is_cuda:
        return 0, 0
    try:
        storage = tensor.untyped_storage()
    except RuntimeError:  # a wrapper of torch.func, or a class without memory of its own
        inner = unwrapped(tensor)
        return None if inner is tensor else _storage_on_gpu(inner)
    address, size = address_of(tensor), storage.nbytes()
    return (address, size) if address or not size else None
