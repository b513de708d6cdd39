"""Sees every tensor that Python knows of, and tells those of the model from those that somebody keeps."""

from __future__ import annotations

import gc
import sys
import time
from itertools import compress
from typing import Any, Final, NamedTuple

from vramscope.graphs import storages
from vramscope.graphs.storages import Storages, TensorKinds

MOST_TENSORS: Final = 20_000
"""looked at one by one, newest first; some 3 µs each"""


LARGE_BUFFER_BYTES: Final = 64 * 1024


class Seen(NamedTuple):
    """What the sweep found. It refers to the user's tensors: keep it for the time of one look only."""

    kept: list[Any]
    """tensors that are neither parameters, small buffers, gradients nor optimizer state"""
    known: Storages
    """storages of those"""
    models: list[tuple[Any, Any]]
    """(a parameter, its outermost module) of each model that no optimizer trains: a teacher, or one that was let go of"""
    live_bytes: int
    """of all tensors seen"""
    tensors: int
    optimizers: int
    left_out: str


def sweep(kinds: TensorKinds, deadline: float) -> Seen:
    """All live tensors. About 0.1 µs an object of the process and 3 µs a tensor."""
    import torch

    module_types, optimizer_types = with_subclasses(torch.nn.Module), with_subclasses(torch.optim.Optimizer)
    tensor_types = {kind for kind in with_subclasses(torch.Tensor) if kinds.owns_memory(kind)}
    of_interest = tensor_types | module_types | optimizer_types
    objects = gc.get_objects()
    # All in C and in one pass: a loop over the objects takes ten times that.
    found = list(compress(objects, map(of_interest.__contains__, map(type, objects))))
    del objects
    tensors = [thing for thing in found if type(thing) in tensor_types]
    modules = [thing for thing in found if type(thing) in module_types]
    optimizers = [thing for thing in found if type(thing) in optimizer_types]
    del found
    known = of_the_model(modules, optimizers)
    untrained = models_without_optimizer(modules, optimizers) if optimizers else []
    kept, live, left_out = [], dict(known), ""
    parameter = torch.nn.Parameter
    tensors.reverse()  # the newest first
    count = len(tensors)
    for position, tensor in enumerate(tensors):
        if position >= MOST_TENSORS or (not position % 256 and position and time.thread_time() > deadline):
            left_out = f"{count - position:,} of {count:,} tensors, the older ones"
            break
        storage = storages.storage_of(tensor)
        if storage is None:
            continue
        live[storage[0]] = storage[1]
        if storage[0] not in known and not issubclass(type(tensor), parameter):
            kept.append(tensor)
    return Seen(kept, known, untrained, sum(live.values()), count, len(optimizers), left_out)


def with_subclasses(kind: type) -> set[type]:
    """A class and all that are made from it. Some ms for the thousands of modules that a library brings."""
    found = {kind}
    stack = [kind]
    while stack:
        children: list[type] = type.__subclasses__(stack.pop())
        for child in children:
            if child not in found:
                found.add(child)
                stack.append(child)
    return found


def of_the_model(modules: list[Any], optimizers: list[Any]) -> Storages:
    """Storages of parameters, buffers, gradients and optimizer state."""
    known: Storages = {}
    for module in modules:
        for tensor in list((module.__dict__.get("_parameters") or {}).values()):
            if tensor is not None:
                add_with_gradient(known, tensor)
        for tensor in list((module.__dict__.get("_buffers") or {}).values()):
            # A large buffer may be one that the user makes longer and longer.
            if tensor is not None and tensor.numel() * tensor.element_size() < LARGE_BUFFER_BYTES:
                storages.add(known, tensor)
    for optimizer in optimizers:
        for parameters in optimizer.__dict__.get("param_groups", ()):
            for tensor in list(parameters.get("params", ())):
                add_with_gradient(known, tensor)
        for state in list(optimizer.__dict__.get("state", {}).values()):
            _add_all(known, state, 3)
    return known


def models_without_optimizer(modules: list[Any], optimizers: list[Any]) -> list[tuple[Any, Any]]:
    """(largest parameter, outermost module) of each tree of modules of which no optimizer has a parameter. 1 µs a module."""
    trained = {
        id(parameter)
        for optimizer in optimizers
        for parameters in optimizer.__dict__.get("param_groups", ())
        for parameter in parameters.get("params", ())
    }
    inner = {id(child) for module in modules for child in (module.__dict__.get("_modules") or {}).values()}
    found = []
    for module in modules:
        if id(module) not in inner:
            parameters = parameters_of(module)
            if parameters and not any(id(parameter) in trained for parameter in parameters):
                found.append((max(parameters, key=lambda parameter: int(parameter.numel())), module))
    return found


def parameters_of(module: Any) -> list[Any]:
    """Of a module and all in it, each once; read from ``__dict__``, so that nothing of the user's runs."""
    found: dict[int, Any] = {}
    seen = {id(module)}
    stack = [module]
    while stack:
        inside = stack.pop().__dict__
        found.update((id(one), one) for one in (inside.get("_parameters") or {}).values() if one is not None)
        for child in (inside.get("_modules") or {}).values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
    return list(found.values())


def add_with_gradient(known: Storages, tensor: Any) -> None:
    """A tensor's storage, and its gradient's where it has one."""
    for one in with_gradients([tensor]):
        storages.add(known, one)


def with_gradients(tensors: list[Any]) -> list[Any]:
    """Tensors, and their gradients where they have some."""
    return tensors + [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]


def _add_all(known: Storages, value: Any, depth: int) -> None:
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        storages.add(known, value)
    elif depth and kind in (dict, list, tuple):
        for part in list(value.values() if kind is dict else value):
            _add_all(known, part, depth - 1)


def held_by_python(tensor: Any, extra: int) -> bool:
    """Whether a Python object refers to the tensor, or only C++ does (a graph that saved it).

    extra   references that the caller makes beside its argument
    """
    return sys.getrefcount(tensor) - 2 - extra - (1 if tensor._use_count() > 1 else 0) > 0
