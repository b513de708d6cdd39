"""Who owns what at that moment: parameters, gradients, optimizer state and buffers, by module; each storage once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.black_box import COPIES, MAX_HOLDERS, OTHER_MODELS, OWNERS, Holder, Update
from vramscope.graphs.roots import locals_of
from vramscope.memory.allocator import block_bytes
from vramscope.memory.counting import storages
from vramscope.oom.beside import Beside, copies_by_name, gathered
from vramscope.steps import lomo, zero
from vramscope.trace import buckets

if TYPE_CHECKING:
    from types import FrameType

    import torch

UNNAMED: Final = "parameters of no known model"
IN_ZERO: Final = "DeepSpeed's ZeRO"
MOST_IN_HAND: Final = 1000
"""tensors in one list of a running step"""

STATE_OF: Final = {
    "Adam": 2.0,
    "AdamW": 2.0,
    "NAdam": 2.0,
    "RAdam": 2.0,
    "Adamax": 2.0,
    "Adagrad": 1.0,
    "Adadelta": 2.0,
    "Rprop": 2.0,
}
"""state in bytes a byte of parameters, of PyTorch's own optimizers that always keep as much (amsgrad: one more)"""


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
    seen: set[int] = set()
    rows: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])

    def add(tensor: Any, module: str, category: str) -> int:
        size = 0
        for key, held in storages(tensor, device):
            if key not in seen:
                seen.add(key)
                size += held
        if size:
            row = rows[module, category]
            row[0] += size
            row[1] += 1
        return size

    names: dict[int, str] = {}
    parameters: list[Any] = []
    # (What FSDP2 has gathered for a layer goes with it: the shards are the weights, and the optimizer has them.)
    passing = {id(one) for root in roots for one in gathered(root)} if optimizers else set()
    for root in roots:
        for name, parameter in root.named_parameters():
            if id(parameter) not in names and id(parameter) not in passing:
                names[id(parameter)] = name.rpartition(".")[0]
                parameters.append(parameter)
    stepped = set()
    of_optimizers = (one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"])
    for owner, its in ((IN_ZERO, zero.parameters()), (UNNAMED, of_optimizers)):
        for parameter in its:
            stepped.add(id(parameter))
            if id(parameter) not in names:
                names[id(parameter)] = owner
                parameters.append(parameter)
    on_its_way = set() if moving is None else set(map(id, moving.parameters()))
    trainable = waiting = largest = narrow = updated = at_once = 0
    for parameter in parameters:
        size = add(parameter, names[id(parameter)], "parameters")
        if not size and parameter.device.type == "cpu" and (loading or id(parameter) in on_its_way):
            size = _when_moved(parameter)
            waiting += size
        if parameter.requires_grad and (training or _gradient_of(parameter) is not None):
            trainable += size
            updated += size if id(parameter) in stepped else 0
            narrow += size if parameter.element_size() == 2 else 0
        largest = max(largest, size)
        at_once = max(at_once, lomo.at_once_bytes(parameter))
    for parameter in parameters:
        add(_gradient_of(parameter), names[id(parameter)], "gradients")
    for tensor in zero.gradients():
        add(tensor, IN_ZERO, "gradients")
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            for value in state.values() if isinstance(state, dict) else ():
                for part in value if isinstance(value, list) else (value,):  # (LBFGS keeps its history in lists)
                    add(part, names.get(id(parameter), UNNAMED), "optimizer")
        for value in lomo.state_of(optimizer):
            add(value, UNNAMED, "optimizer")
    for value in _in_hand(frames, optimizers):
        add(value, UNNAMED, "optimizer")
    for root in roots:
        for name, buffer in root.named_buffers():
            add(buffer, name.rpartition(".")[0], "buffers")
    if beside is not None:
        for model in beside.models:
            gradients = (_gradient_of(one) for one in model.parameters())
            for tensor in (*model.parameters(), *model.buffers(), *gradients):
                if id(tensor) not in passing:
                    add(tensor, type(model).__name__, OTHER_MODELS)
        weights = {name: one for root in roots for name, one in root.named_parameters()}
        for tensor in copies_by_name(weights, beside.dicts):
            add(tensor, COPIES, OTHER_MODELS)
    if moving is not None:
        own = set(map(id, parameters))
        rest = (one for one in moving.parameters() if id(one) not in own and one.device.type == "cpu")
        waiting += sum(map(_when_moved, rest))
    owned = dict.fromkeys(OWNERS, 0)
    for (_, category), (size, _) in rows.items():
        owned[category] += size
    most = sorted(rows.items(), key=lambda entry: -entry[1][0])[:MAX_HOLDERS]
    holders = [
        Holder(module=module[:4096], category=category, held_bytes=size, tensors=tensors)
        for (module, category), (size, tensors) in most
    ]
    kind = type(optimizers[0]).__name__ if optimizers else None
    state, update = _state_per_byte(optimizers), _update_of(optimizers)
    if state is not None and trainable:
        state *= updated / trainable  # (copies in 32 bits may be stepped in the place of the model's own)
    passes = bool(optimizers) and all(lomo.is_its(optimizer) for optimizer in optimizers)
    of_gradients = at_once if passes else None
    outermost = {id(one): one for one in (*roots, *(() if beside is None else beside.models))}
    copies = buckets.held_bytes(outermost.values(), device)
    return Holdings(owned, trainable, waiting, largest, of_gradients, copies, narrow, holders, kind, state, update)


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


def _in_hand(frames: Iterable[FrameType], optimizers: list[Any]) -> Iterator[Any]:
    """What an optimizer has in local variables of its ``step``: LBFGS its whole history, until its first step has ended.

    Others have what is counted already, or nothing: they update in functions.
    """
    import torch

    known = set(map(id, optimizers))
    for frame in frames:
        code = frame.f_code
        if code.co_name != "step" or not code.co_argcount:
            continue
        values = locals_of(frame)
        if id(values.get(code.co_varnames[0])) not in known:
            continue
        for value in values.values():
            held = value[:MOST_IN_HAND] if type(value) is list else (value,)
            yield from (one for one in held if issubclass(type(one), torch.Tensor))


def _state_per_byte(optimizers: list[Any]) -> float | None:
    """What the optimizer will keep for each byte of a parameter; None where that is not known."""
    shares = set()
    for optimizer in optimizers:
        kind, defaults = type(optimizer), getattr(optimizer, "defaults", {})
        if kind.__name__ == "Lomo" and lomo.is_its(optimizer):
            shares.add(0.0)
            continue
        if not kind.__module__.startswith("torch.optim"):
            return None
        if kind.__name__ == "SGD":
            shares.add(1.0 if defaults.get("momentum") else 0.0)
        elif kind.__name__ in STATE_OF:
            shares.add(STATE_OF[kind.__name__] + (1.0 if defaults.get("amsgrad") else 0.0))
        else:
            return None
    return shares.pop() if len(shares) == 1 else None


def _update_of(optimizers: list[Any]) -> Update | None:
    """How the first goes through its parameters; on a GPU ``foreach`` is what PyTorch takes by itself."""
    defaults = getattr(optimizers[0], "defaults", {}) if optimizers else {}
    if "foreach" not in defaults or not type(optimizers[0]).__module__.startswith("torch.optim"):
        return None
    if defaults.get("fused"):
        return "fused"
    return "one by one" if defaults["foreach"] is False else "foreach"
