"""Counts the bytes of tensors that modules and optimizers own. Each storage counts once, rounded as by the allocator.

Counting takes about 1 µs per tensor. A check whether the result may have changed takes a sixteenth of that (:func:`counts_of`):
sizes rarely change unless the number of tensors changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.memory import deepspeed_zero, lomo_state
from vramscope.memory.optimizer_states import CONTAINERS, contained, tensors_in
from vramscope.memory.peak_counters import BLOCK_BYTES, block_bytes
from vramscope.process.torch_functions import plainly
from vramscope.protocol.series import CPU, UNKNOWN

if TYPE_CHECKING:
    import torch


class OwnedBytes(NamedTuple):
    """Counted bytes of one device."""

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    workspaces: int = UNKNOWN
    """Workspaces of cuBLAS (:mod:`vramscope.memory.cublas_workspaces`)."""

    @property
    def lasting(self) -> int:
        """All known bytes except gradients. A step does not change them."""
        return self.parameters + self.optimizer + self.buffers + max(0, self.workspaces)


class Counts(NamedTuple):
    """Numbers of parameters, states and gradients on all devices. While they do not change, the last count is valid."""

    parameters: int
    states: int
    gradients: int


@plainly
def counts_of(optimizers: Iterable[torch.optim.Optimizer]) -> Counts:
    """Return the numbers of tensors of these optimizers. Takes about 0.06 µs per parameter."""
    parameters = states = gradients = 0
    for optimizer in list(optimizers):
        states += len(optimizer.state) + contained(optimizer)
        for group in optimizer.param_groups:
            members = group["params"]
            parameters += len(members)
            for parameter in members:
                if parameter.grad is not None:
                    gradients += 1
    return Counts(parameters, states, gradients)


def parameters_of(
    optimizers: Iterable[torch.optim.Optimizer], roots: Iterable[torch.nn.Module]
) -> Iterator[torch.Tensor]:
    """Yield the parameters of optimizers and modules without duplicates."""
    seen: set[int] = set()
    for optimizer in list(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter
    for root in list(roots):
        for parameter in root.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


@plainly
def count(optimizers: Iterable[torch.optim.Optimizer], roots: Iterable[torch.nn.Module], device: int) -> OwnedBytes:
    """Return the bytes on a device by owner. Each storage counts once (tied weights, views, gradients in one bucket)."""
    parameters = state = buffers = 0
    fresh = _fresh_bytes(device)

    every = list(parameters_of(optimizers, roots))
    for parameter in (*every, *deepspeed_zero.parameters()):
        parameters += fresh(parameter)
    gradients = _gradients(every, fresh)
    for root in list(roots):
        for buffer in root.buffers():
            buffers += fresh(buffer)
    for optimizer in list(optimizers):
        for entry in list(optimizer.state.values()):
            for value in list(entry.values()) if isinstance(entry, dict) else ():
                if issubclass(type(value), CONTAINERS):
                    state += sum(map(fresh, tensors_in(value)))
                else:
                    state += fresh(value)
        for value in lomo_state.state_of(optimizer):
            state += fresh(value)
    return OwnedBytes(parameters, gradients, state, buffers)


@plainly
def gradient_bytes(optimizers: Iterable[torch.optim.Optimizer], roots: Iterable[torch.nn.Module], device: int) -> int:
    """Return the bytes of gradients on a device. A third of the work of :func:`count`."""
    return _gradients(parameters_of(optimizers, roots), _fresh_bytes(device))


def _gradients(parameters: Iterable[torch.Tensor], fresh: Callable[[Any], int]) -> int:
    gradients = 0
    for parameter in parameters:
        # functional_call puts results into a module for a moment, and PyTorch warns when their gradient is read
        if parameter.is_leaf and parameter.grad is not None:
            gradients += fresh(parameter.grad)
    for tensor in deepspeed_zero.gradients():
        gradients += fresh(tensor)
    return gradients


def _fresh_bytes(device: int) -> Callable[[Any], int]:
    """Return a function that returns the bytes of a tensor's storages on a device, and 0 for a storage that it has seen.

    An ordinary tensor, as nearly all are, is read here without :func:`storages`: in a third of the time.
    """
    import torch

    tensor_type, parameter_type, strided = torch.Tensor, torch.nn.Parameter, torch.strided
    seen: set[int] = set()

    def fresh(tensor: Any) -> int:
        kind = type(tensor)
        if (kind is tensor_type or kind is parameter_type) and tensor.layout is strided:
            if tensor.is_cuda:
                if tensor.get_device() != device:
                    return 0
            elif device != CPU or not tensor.is_cpu:
                return 0
            try:
                storage = tensor.untyped_storage()
            except RuntimeError:
                pass  # a wrapper of torch.func
            else:
                key: int = storage._cdata
                size: int = storage.nbytes()
                if key in seen:
                    return 0
                seen.add(key)
                return size if device == CPU else -(-size // BLOCK_BYTES) * BLOCK_BYTES
        fresh_bytes = 0
        for key, size in storages(tensor, device):
            if key not in seen:
                seen.add(key)
                fresh_bytes += size
        return fresh_bytes

    return fresh


def storages(tensor: Any, device: int) -> Iterator[tuple[int, int]]:
    """(identity, bytes) of the storages under a tensor on this device."""
    for _, storage in untyped_storages(tensor, device):
        yield storage._cdata, storage_bytes(storage, device)


def storage_bytes(storage: torch.UntypedStorage, device: int) -> int:
    """Return the bytes of a storage on this device, as its allocator counts them."""
    size = storage.nbytes()
    return size if device == CPU else block_bytes(size)


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 where it has none, as of a class that keeps its memory in other tensors.

    A storage's ``data_ptr()`` raises there, and copies a copy-on-write storage.
    """
    import torch

    read = getattr(torch._C, "_data_address", None)
    try:
        return int(tensor.untyped_storage().data_ptr() if read is None else read(tensor))
    except RuntimeError:
        return 0


def untyped_storages(tensor: Any, device: int) -> Iterator[tuple[torch.Tensor, torch.UntypedStorage]]:
    """Storages with memory under a tensor on this device, each with the tensor that has it.

    Wrappers are opened: DTensor, quantised states, torch.func's."""
    import torch

    if not issubclass(type(tensor), torch.Tensor):  # isinstance runs the code of a proxy's class
        return
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from untyped_storages(getattr(tensor, name), device)
        return
    if tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            yield from untyped_storages(tensor._indices(), device)
            yield from untyped_storages(tensor._values(), device)
        return
    where = tensor.device
    if where.type == "cpu":
        if device != CPU:
            return
    elif where.type != "cuda" or where.index != device:
        return
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, ValueError):  # the last of a lazy parameter
        inner = unwrapped(tensor)
        if inner is not tensor:  # otherwise the class has no memory of its own
            yield from untyped_storages(inner, device)
        return
    if storage.nbytes():
        yield tensor, storage


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the innermost tensor of a wrapper of torch.func's transformations; any other tensor is returned as it is."""
    import torch

    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor
