"""Who owns what at that moment: parameters, gradients, optimizer state and buffers, by module; each storage once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.memory import deepspeed_zero, lomo_state
from vramscope.memory.peak_counters import block_bytes
from vramscope.memory.tensor_bytes import storages
from vramscope.oom.optimizer_state import state_per_byte_of, states_of, update_of
from vramscope.oom.other_models import Beside, copies_by_name, gathered
from vramscope.protocol.oom_record import COPIES, MAX_HOLDERS, OTHER_MODELS, OWNERS, Holder, Update
from vramscope.recording import ddp_buckets

if TYPE_CHECKING:
    from types import FrameType

    import torch

UNNAMED: Final = "parameters of no known model"
IN_ZERO: Final = "DeepSpeed's ZeRO"


class Holdings(NamedTuple):
    """Of one device."""

    owned_bytes: dict[str, int]
    trainable_bytes: int
    waiting_bytes: int
    largest_parameter_bytes: int
    gradients_at_once_bytes: int | None
    bucket_bytes: int
    narrow_bytes: int
    holders: list[Holder]
    optimizer_kind: str | None
    state_per_byte: float | None
    update: Update | None


def count(
    optimizers: Iterable[Any],
    roots: Iterable[torch.nn.Module],
    device: int,
    *,
    loading: bool,
    training: bool = True,
    frames: Iterable[FrameType] = (),
    beside: Beside | None = None,
    moving: torch.nn.Module | None = None,
) -> Holdings:
    """loading    the models are on their way to the card, what lies on the host will follow
    training   gradients are to come of all that could have them, not only of what has
    frames     the stack
    beside     what else lives; ``moving``: the one model that is on its way

    Some 3 µs a tensor. Views (tied weights, gradients in one bucket) count once, for the first that has them."""
    optimizers, roots = list(optimizers), list(roots)
    if beside is not None:
        roots = _that_train(roots, beside.models, optimizers)
    others = () if beside is None else beside.models
    # (What FSDP2 has gathered for a layer goes with it: the shards are the weights, and the optimizer has them.)
    passing = {id(one) for root in roots for one in gathered(root)} if optimizers else set()
    of_zero = list(deepspeed_zero.parameters())
    of_optimizers = [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
    parameters, names = _named(roots, passing, of_zero, of_optimizers)

    owners = _Owners(device)
    on_its_way = set() if moving is None else set(map(id, moving.parameters()))
    stepped = set(map(id, (*of_zero, *of_optimizers)))
    trainable = waiting = largest = narrow = updated = at_once = 0
    for parameter in parameters:
        size = owners.add(parameter, names[id(parameter)], "parameters")
        if not size and parameter.device.type == "cpu" and (loading or id(parameter) in on_its_way):
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
    for model in others:
        gradients = (_gradient_of(one) for one in model.parameters())
        for tensor in (*model.parameters(), *model.buffers(), *gradients):
            if id(tensor) not in passing:
                owners.add(tensor, type(model).__name__, OTHER_MODELS)
    if beside is not None:
        weights = {name: one for root in roots for name, one in root.named_parameters()}
        for tensor in copies_by_name(weights, beside.dicts):
            owners.add(tensor, COPIES, OTHER_MODELS)

    state_per_byte = state_per_byte_of(optimizers)
    if state_per_byte is not None and trainable:
        state_per_byte *= updated / trainable  # (copies in 32 bits may be stepped in the place of the model's own)
    passes = bool(optimizers) and all(lomo_state.is_lomo(optimizer) for optimizer in optimizers)
    outermost = {id(one): one for one in (*roots, *others)}
    return Holdings(
        owned_bytes=owners.owned_bytes(),
        trainable_bytes=trainable,
        waiting_bytes=waiting,
        largest_parameter_bytes=largest,
        gradients_at_once_bytes=at_once if passes else None,
        bucket_bytes=ddp_buckets.held_bytes(outermost.values(), device),
        narrow_bytes=narrow,
        holders=owners.largest(),
        optimizer_kind=type(optimizers[0]).__name__ if optimizers else None,
        state_per_byte=state_per_byte,
        update=update_of(optimizers),
    )


class _Owners:
    """What modules have on a device, by category: each storage once, for the first that has it."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._seen: set[int] = set()
        self._rows: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        """(module, category) -> bytes, tensors"""

    def add(self, tensor: Any, module: str, category: str) -> int:
        """Bytes of it that nobody had before."""
        size = 0
        for key, held in storages(tensor, self._device):
            if key not in self._seen:
                self._seen.add(key)
                size += held
        if size:
            row = self._rows[module, category]
            row[0] += size
            row[1] += 1
        return size

    def owned_bytes(self) -> dict[str, int]:
        """By category."""
        owned = dict.fromkeys(OWNERS, 0)
        for (_, category), (size, _) in self._rows.items():
            owned[category] += size
        return owned

    def largest(self) -> list[Holder]:
        """The most that is held, largest first."""
        most = sorted(self._rows.items(), key=lambda entry: -entry[1][0])[:MAX_HOLDERS]
        return [
            Holder(module=module[:4096], category=category, held_bytes=size, tensors=tensors)
            for (module, category), (size, tensors) in most
        ]


def _named(
    roots: Iterable[torch.nn.Module], passing: Collection[int], of_zero: Iterable[Any], of_optimizers: Iterable[Any]
) -> tuple[list[Any], dict[int, str]]:
    """All parameters, those of known models first, and by id the module that each belongs to. ``passing``: ids of what counts for
    none."""
    parameters: list[Any] = []
    names: dict[int, str] = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            if id(parameter) not in names and id(parameter) not in passing:
                names[id(parameter)] = name.rpartition(".")[0]
                parameters.append(parameter)
    for owner, its in ((IN_ZERO, of_zero), (UNNAMED, of_optimizers)):
        for parameter in its:
            if id(parameter) not in names:
                names[id(parameter)] = owner
                parameters.append(parameter)
    return parameters, names


def _that_train(
    heard: list[torch.nn.Module], living: Iterable[torch.nn.Module], optimizers: Iterable[Any]
) -> list[torch.nn.Module]:
    """Of all models those that an optimizer updates; where none does, of those that were heard the ones that want gradients. A
    teacher, or the model of an earlier fold, is one of those that live beside them."""
    updated = {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    known = set(map(id, heard))
    every = [*heard, *(one for one in living if id(one) not in known)] if updated else []
    led = [
        one
        for one in every
        if any(id(part) in updated for part in one.parameters()) or next(gathered(one), None) is not None
    ]
    return led or [root for root in heard if any(one.requires_grad for one in root.parameters())] or heard


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """None also of what another operation gave (torch.func's weights within its function): PyTorch warns who asks those."""
    return parameter.grad if parameter.is_leaf or parameter.retains_grad else None


def _when_moved(parameter: torch.Tensor) -> int:
    return block_bytes(parameter.numel() * parameter.element_size())
