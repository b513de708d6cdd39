"""Live objects beside the known models: other models, copies of weights by name, optimizers that have made no step yet.

A teacher, an average of the weights, a checkpoint that was read and not freed, a state dict in another precision:
memory that no batch size changes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.memory.optimizer_states import tensors_in
from vramscope.memory.tensor_bytes import storages
from vramscope.process.frames import locals_of
from vramscope.process.live_objects import living
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    from types import FrameType

    import torch

FEWEST_NAMES: Final = 2
"""Parameters that a dict must have by name and shape to be a copy of a model's weights."""
DICTS: Final = (dict, OrderedDict)
MOST_TRIED: Final = 8
"""Names that a dict is searched for. The first are there while it is being made, too."""


class LiveObjects(NamedTuple):
    """Objects of the whole process."""

    models: list[torch.nn.Module]
    """Outermost modules, those that train among them."""
    optimizers: list[Any]
    dicts: list[Mapping[Any, Any]]
    exceptions: list[BaseException]
    """Exceptions, among them those that were caught and are still referenced."""


def scan() -> LiveObjects:
    """Search all objects of the process; 0.1 s for 330,000."""
    import torch

    found = LiveObjects([], [], [], [])
    for thing in living(torch.nn.Module, torch.optim.Optimizer, dict, BaseException):
        kind = type(thing)
        if kind in DICTS:
            found.dicts.append(thing)
        elif issubclass(kind, torch.nn.Module):
            found.models.append(thing)
        elif issubclass(kind, torch.optim.Optimizer) and "param_groups" in vars(thing):
            found.optimizers.append(thing)
        elif issubclass(kind, BaseException):
            found.exceptions.append(thing)
    return found._replace(models=outermost_modules(found.models))


def optimizers_of(parameters: Iterable[Any], optimizers: Iterable[Any]) -> list[Any]:
    """Optimizers that update any of these parameters. An earlier training may have left others.

    A model of FSDP2 has whole parameters while it runs, and its optimizer the shards. These are matched by their shapes.
    """
    known, shapes = set(), set()
    for one in parameters:
        known.add(id(one))
        if not is_lazy(one):
            shapes.add(tuple(one.shape))
    return [
        optimizer
        for optimizer in optimizers
        if any(
            id(one) in known or (is_shard(one) and tuple(one.shape) in shapes)
            for group in optimizer.param_groups
            for one in group["params"]
        )
    ]


def about_to_begin(optimizers: Iterable[Any], known: Iterable[Any], device: int) -> list[Any]:
    """Optimizers beside the known ones that have no state yet and will train parameters of their own on this device.

    A generator's, while the critic takes its first step. Those that an earlier training left have state.
    """
    known = list(known)
    updated = {id(one) for optimizer in known for group in optimizer.param_groups for one in group["params"]}
    ids = set(map(id, known))
    return [
        optimizer
        for optimizer in optimizers
        if id(optimizer) not in ids
        and not optimizer.state
        and any(
            one.requires_grad and id(one) not in updated and any(storages(one, device))
            for group in optimizer.param_groups
            for one in group["params"]
        )
    ]


def is_lazy(parameter: Any) -> bool:
    """Whether it is a parameter of a lazy module before its first forward pass. It has no shape."""
    import torch

    return bool(torch.nn.parameter.is_lazy(parameter))


def is_shard(parameter: Any) -> bool:
    """Whether it is a DTensor: this rank's part of a parameter, with the shape of the whole."""
    return type(parameter).__name__ == "DTensor"


def gathered(root: torch.nn.Module) -> Iterator[Any]:
    """Whole parameters that a model of FSDP2 has while they are needed. Its own parameters are shards."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None and any(isinstance(module, kind) for module in root.modules()):
        yield from (one for one in root.parameters() if not is_shard(one))


def copies_by_name(names: Mapping[str, Any], dicts: Iterable[Mapping[Any, Any]]) -> Iterator[Any]:
    """Tensors of dicts that have a model's parameters (``names``) by name and shape."""
    import torch

    tried = list(names)[:MOST_TRIED]
    for one in dicts:
        if not any(name in one for name in tried):
            continue
        pairs = [(names.get(name), value) for name, value in list(one.items()) if type(name) is str]
        # A tensor with a graph is a result, such as fast weights.
        tensors = [value for _, value in pairs if issubclass(type(value), torch.Tensor) and value.is_leaf]
        alike = sum(
            own is not None
            and issubclass(type(value), torch.Tensor)
            and not is_lazy(value)
            and value.shape == own.shape
            for own, value in pairs
        )
        if alike >= FEWEST_NAMES:
            yield from tensors


def is_state_dict(one: object) -> bool:
    """Whether it has the format of ``Optimizer.state_dict()``. The attributes of an optimizer have its parameters as keys."""
    if type(one) not in DICTS or "param_groups" not in one:  # type: ignore[operator]
        return False
    state = one.get("state")  # type: ignore[attr-defined]
    return type(state) in DICTS and bool(state) and all(type(key) in (int, str) for key in list(state))


def copied_states(dicts: Iterable[Mapping[Any, Any]], optimizers: Iterable[Any]) -> Iterator[Any]:
    """Tensors of state dicts that no live optimizer has: of a checkpoint that was read, or of a snapshot."""
    states = [one["state"] for one in dicts if is_state_dict(one)]
    if not states:
        return
    own = {id(one) for optimizer in optimizers for state in list(optimizer.state.values()) for one in tensors_in(state)}
    for state in states:
        yield from (one for part in list(state.values()) for one in tensors_in(part) if id(one) not in own)


def being_moved(frames: Iterable[FrameType]) -> torch.nn.Module | None:
    """Model that is being moved or cast (``.to()``, ``.cuda()``, ``.half()``); None: there is none."""
    import torch

    moves = getattr(torch.nn.Module._apply, "__code__", None)
    found = None
    for frame in frames:  # the outermost frame is the last
        if frame.f_code is moves:
            found = locals_of(frame).get("self", found)
    return found
