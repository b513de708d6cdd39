"""Owners of device memory at the error: parameters, gradients, optimizer state and buffers, by module. Each storage counts once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.memory import ddp_buckets, deepspeed_zero, lomo_state
from vramscope.memory.peak_counters import block_bytes
from vramscope.memory.tensor_bytes import address_of, storage_bytes, storages, untyped_storages
from vramscope.oom import weight_copies, weight_sized
from vramscope.oom.frozen_gradients import frozen_gradient_bytes
from vramscope.oom.model_copy import ModelCopy, copy_in_progress
from vramscope.oom.optimizer_state import (
    state_per_byte_of,
    states_of,
    superseded_bytes,
    surplus_bytes,
    update_of,
)
from vramscope.oom.other_models import LiveObjects, copied_states, copies_by_name, gathered, is_lazy
from vramscope.process.torch_functions import plainly
from vramscope.protocol.oom_record import COPIES, MAX_HOLDERS, OTHER_MODELS, OWNERS, DataHolder, ModuleBytes, Update

if TYPE_CHECKING:
    from types import FrameType

    import torch

UNNAMED: Final = "parameters of no known model"
IN_ZERO: Final = "DeepSpeed's ZeRO"


class OwnedMemory(NamedTuple):
    """Memory of one device by owner; fields as in OomRecord."""

    owned_bytes: dict[str, int]
    trainable_bytes: int
    waiting_bytes: int
    copying: ModelCopy | None
    largest_parameter_bytes: int
    gradients_at_once_bytes: int | None
    bucket_bytes: int
    narrow_bytes: int
    holders: list[ModuleBytes]
    optimizer_kind: str | None
    superseded_state_bytes: int
    surplus_state_bytes: int | None
    frozen_gradients_bytes: int
    state_per_byte: float | None
    update: Update | None
    copies: DataHolder | None
    kept_models: int
    addresses: frozenset[int]
    """Addresses of the storages that have an owner."""
    weight_numbers: Counter[int]
    """Number of weights and buffers of the models that train, by their elements, as of weight_sized.numbers_of."""


@plainly
def count(
    optimizers: Iterable[Any],
    roots: Iterable[torch.nn.Module],
    device: int,
    *,
    loading: bool,
    training: bool = True,
    frames: Iterable[FrameType] = (),
    live: LiveObjects | None = None,
    moving: torch.nn.Module | None = None,
    idle: Collection[int] = (),
) -> OwnedMemory:
    """Memory of the device by owner. About 3 µs a tensor.

    loading    the models are being moved to the device; parameters on the host will follow
    training   all parameters that can have gradients will have them
    frames     the stack
    live       all live models, optimizers and dicts
    moving     the one model that is being moved
    idle       identities of optimizers that have not stepped in this step or the last one

    Views (tied weights, gradients in one bucket) count once, for the first owner.
    """
    optimizers, roots = list(optimizers), list(roots)
    if live is not None:
        roots = _training_models(roots, live.models, optimizers)
    others = () if live is None else live.models
    # FSDP2 frees what it has gathered for a layer. The shards are the weights, and the optimizer has them.
    temporary = {id(one) for root in roots for one in gathered(root)} if optimizers else set()
    of_zero = list(deepspeed_zero.parameters())
    of_optimizers = [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
    parameters, names = _named(roots, temporary, of_zero, of_optimizers)

    owners, copies = _Owners(device), None
    being_moved = set() if moving is None else set(map(id, moving.parameters()))
    stepped = set(map(id, (*of_zero, *of_optimizers)))
    trainable = waiting = largest = narrow = updated = at_once = 0
    for parameter in parameters:
        size = owners.add(parameter, names[id(parameter)], "parameters")
        if not size and parameter.device.type == "cpu" and (loading or id(parameter) in being_moved):
            size = _when_moved(parameter)
            waiting += size
        if parameter.requires_grad and (training or _gradient_of(parameter) is not None):
            trainable += size
            updated += size if id(parameter) in stepped else 0
            narrow += size if parameter.element_size() == 2 else 0
        largest = max(largest, size)
        at_once = max(at_once, lomo_state.update_bytes(parameter))
    if moving is not None:
        own = set(map(id, parameters))
        rest = (one for one in moving.parameters() if id(one) not in own and one.device.type == "cpu")
        waiting += sum(map(_when_moved, rest))

    for parameter in parameters:
        owners.add(_gradient_of(parameter), names[id(parameter)], "gradients")
    for tensor in deepspeed_zero.gradients():
        owners.add(tensor, IN_ZERO, "gradients")
    for parameter, value in states_of(optimizers, frames):
        owners.add(value, names.get(id(parameter), UNNAMED), "optimizer")
    for root in roots:
        for name, buffer in root.named_buffers():
            owners.add(buffer, name.rpartition(".")[0], "buffers")
    copying, made = copy_in_progress(frames, device, owners.counted())
    for model in others:
        gradients = (_gradient_of(one) for one in model.parameters())
        for tensor in (*model.parameters(), *model.buffers(), *gradients):
            if id(tensor) not in temporary:
                owners.add(tensor, type(model).__name__, OTHER_MODELS)
    if live is not None:
        weights = {name: one for root in roots for name, one in root.named_parameters() if not is_lazy(one)}
        before = owners.counted()
        for tensor in copies_by_name(weights, live.dicts):
            owners.add(tensor, COPIES, OTHER_MODELS)
        if among := owners.counted() - before:
            copies = weight_copies.largest(weights, device, among)
        for tensor in (*made, *copied_states(live.dicts, live.optimizers)):
            owners.add(tensor, COPIES, OTHER_MODELS)

    state_per_byte = state_per_byte_of(optimizers)
    if state_per_byte is not None and trainable:
        # The optimizer may update 32-bit copies instead of the model's own weights.
        state_per_byte *= updated / trainable
    within_backward = bool(optimizers) and all(lomo_state.is_lomo(optimizer) for optimizer in optimizers)
    outermost = {id(one): one for one in (*roots, *others)}
    every = (*parameters, *(one for model in others for one in model.parameters()))
    steppers = optimizers if live is None else (*optimizers, *live.optimizers)
    return OwnedMemory(
        owned_bytes=owners.owned_bytes(),
        trainable_bytes=trainable,
        waiting_bytes=waiting,
        copying=copying,
        largest_parameter_bytes=largest,
        gradients_at_once_bytes=at_once if within_backward else None,
        bucket_bytes=ddp_buckets.held_bytes(outermost.values(), device),
        narrow_bytes=narrow,
        holders=owners.largest(),
        optimizer_kind=type(optimizers[0]).__name__ if optimizers else None,
        superseded_state_bytes=superseded_bytes(optimizers, device, idle),
        surplus_state_bytes=surplus_bytes(optimizers, device, owners.owned_bytes()["optimizer"]),
        frozen_gradients_bytes=frozen_gradient_bytes(every, steppers, device, idle),
        state_per_byte=state_per_byte,
        update=update_of(optimizers),
        copies=copies,
        kept_models=_kept_models(roots, others, device),
        addresses=frozenset(owners.addresses),
        weight_numbers=weight_sized.numbers_of((*parameters, *(one for root in roots for one in root.buffers()))),
    )


class _Owners:
    """Memory of modules on a device by category. Each storage counts once, for the first owner."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._counted: set[int] = set()
        self.addresses: set[int] = set()
        self._rows: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        """Bytes and tensors by module and category."""

    def add(self, tensor: Any, module: str, category: str) -> int:
        """Add a tensor; return its bytes that no owner had before."""
        size = 0
        for plain, storage in untyped_storages(tensor, self._device):
            if storage._cdata not in self._counted:
                self._counted.add(storage._cdata)
                if address := address_of(plain):
                    self.addresses.add(address)
                size += storage_bytes(storage, self._device)
        if size:
            row = self._rows[module, category]
            row[0] += size
            row[1] += 1
        return size

    def counted(self) -> frozenset[int]:
        """Storages that have an owner."""
        return frozenset(self._counted)

    def owned_bytes(self) -> dict[str, int]:
        """Bytes by category."""
        owned = dict.fromkeys(OWNERS, 0)
        for (_, category), (size, _) in self._rows.items():
            owned[category] += size
        return owned

    def largest(self) -> list[ModuleBytes]:
        """Rows with the most bytes, largest first."""
        most = sorted(self._rows.items(), key=lambda entry: -entry[1][0])[:MAX_HOLDERS]
        return [
            ModuleBytes(module=module[:4096], category=category, held_bytes=size, tensors=tensors)
            for (module, category), (size, tensors) in most
        ]


def _named(
    roots: Iterable[torch.nn.Module], temporary: Collection[int], of_zero: Iterable[Any], of_optimizers: Iterable[Any]
) -> tuple[list[Any], dict[int, str]]:
    """All parameters, those of known models first, and the module of each by id.

    temporary   ids of parameters that do not count
    """
    parameters: list[Any] = []
    names: dict[int, str] = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            if id(parameter) not in names and id(parameter) not in temporary:
                names[id(parameter)] = name.rpartition(".")[0]
                parameters.append(parameter)
    for owner, its in ((IN_ZERO, of_zero), (UNNAMED, of_optimizers)):
        for parameter in its:
            if id(parameter) not in names:
                names[id(parameter)] = owner
                parameters.append(parameter)
    return parameters, names


def _training_models(
    known: list[torch.nn.Module], live: Iterable[torch.nn.Module], optimizers: Iterable[Any]
) -> list[torch.nn.Module]:
    """Models that an optimizer updates; where none does, known models that require gradients.

    A teacher, or the model of an earlier fold, is not one of them.
    """
    updated = {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    ids = set(map(id, known))
    every = [*known, *(one for one in live if id(one) not in ids)] if updated else []
    trained = [
        one
        for one in every
        if any(id(part) in updated for part in one.parameters()) or next(gathered(one), None) is not None
    ]
    return trained or [root for root in known if any(one.requires_grad for one in root.parameters())] or known


def _kept_models(roots: Iterable[torch.nn.Module], others: Iterable[torch.nn.Module], device: int) -> int:
    """Other models on the device that have the shapes of a model that trains and require gradients, as those of earlier folds.

    A teacher is larger, and an average requires no gradients.
    """
    roots = list(roots)
    trained, shapes = set(map(id, roots)), set(map(_shapes, roots))
    others = [one for one in others if id(one) not in trained and _shapes(one) in shapes]
    return sum(
        any(part.requires_grad and next(storages(part, device), None) is not None for part in one.parameters())
        for one in others
    )


def _shapes(model: torch.nn.Module) -> tuple[torch.Size, ...]:
    return tuple(one.shape for one in model.parameters() if not is_lazy(one))


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Gradient of a parameter. None also for results of operations (torch.func's weights), where reading it warns."""
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def _when_moved(parameter: torch.Tensor) -> int:
    return block_bytes(parameter.numel() * parameter.element_size())
