"""All live tensors: those of the model, and those that a holder may retain.

If a pass over all objects of the process takes too long, only tensors that variables lead to are seen.
"""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any, Final, NamedTuple

from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan import paths, storages, time_budget
from vramscope.leaks.scan.storages import Storages, TensorKinds
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.process import live_objects, name_roots, own_tensors, type_info
from vramscope.process.live_objects import with_subclasses
from vramscope.process.reference_counts import OF_ARGUMENT

MOST_TENSORS: Final = 20_000
"""Tensors that are read one by one, newest first, at about 3 µs each."""
AT_ONCE: Final = 256
"""Tensors between two readings of the clock."""
LEAST_TENSORS: Final = 4_096
"""The same in an ordinary process whatever the time: with fewer, growth would not show."""
PART_FOR_COUNTING: Final = 0.4
"""Share of the time that counting all objects may take if half of all memory blocks are objects."""

TOO_MANY: Final = "all but those that your variables lead to: too many objects for a full pass"
NOT_REACHED: Final = "a part of your variables, because there were too many objects"


class LiveTensors(NamedTuple):
    """Result of the sweep. It refers to the user's tensors: drop it after the scan."""

    kept: list[Any]
    """Tensors of no module and no optimizer: neither parameters, small buffers, gradients nor state; and parameters that
    only an optimizer refers to."""
    known: Storages
    """Storages of parameters, small buffers, gradients and optimizer state."""
    models: list[tuple[Any, Any]]
    """(a parameter, its outermost module) of each model that no optimizer trains: a teacher, or a discarded one."""
    live_bytes: int
    """Bytes of all tensors seen."""
    tensors: int
    optimizers: int
    orphans: list[Any]
    """Parameters of no live module whose gradients have a graph that refers to the parameters."""
    retired: list[Any]
    """Optimizers that no longer step. Their tensors belong to the model as long as a variable leads to them (in_use)."""
    tensor_types: set[type]
    not_scanned: str
    modules: list[Any]
    trained: set[int]
    """Ids of the parameters of optimizers that step, or may do so."""


class _TooManyObjects(Exception):
    """Too many objects to see all tensors in time."""


def sweep(
    kinds: TensorKinds, time: TimeBudget, steps_no_more: Callable[[Any], bool] = lambda optimizer: False
) -> LiveTensors:
    """All live tensors, newest first. About 0.1 µs an object of the process and 3 µs a tensor.

    steps_no_more   True for a retired optimizer

    All of it within TENSORS of the time (in an ordinary process at least the minimum); what is left out is reported.
    """
    import torch

    module_types, optimizer_types = with_subclasses(torch.nn.Module), with_subclasses(torch.optim.Optimizer)
    tensor_types = {kind for kind in with_subclasses(torch.Tensor) if kinds.owns_memory(kind)}
    left_out = ""
    try:
        tensors, others, count = _of_all_objects(tensor_types, module_types | optimizer_types, time)
    except _TooManyObjects as reason:
        left_out = str(reason)
        found, complete = paths.reachable(
            name_roots.roots(), tensor_types | module_types | optimizer_types, time, time_budget.REACHABLE
        )
        if not complete:
            left_out += f"; {NOT_REACHED}"
        tensors = [thing for thing in found if type(thing) in tensor_types]
        others = [thing for thing in found if type(thing) not in tensor_types]
        count = len(tensors)
        del found, tensors[:-MOST_TENSORS]
    modules = [thing for thing in others if type(thing) in module_types]
    every = [thing for thing in others if type(thing) in optimizer_types]
    del others
    optimizers = [optimizer for optimizer in every if not steps_no_more(optimizer)]
    retired = [optimizer for optimizer in every if steps_no_more(optimizer)]
    known = of_the_model(modules, optimizers)
    untrained = models_without_optimizer(modules, optimizers) if every else []
    kept: list[Any] = []
    orphans: list[Any] = []
    live = dict(known)
    in_groups = _in_groups_alone(modules, optimizers)
    in_groups_alone: list[Any] = []
    own = own_tensors.storages()
    parameter = torch.nn.Parameter
    tensors.reverse()  # the newest first
    looked_at = len(tensors)
    for position, tensor in enumerate(tensors):
        if not position % AT_ONCE and time.over(time_budget.TENSORS, position, LEAST_TENSORS):
            looked_at = position
            break
        storage = storages.storage_of(tensor)
        if storage is None:
            continue
        live[storage[0]] = storage[1]
        if storage[0] not in known and storage[0] not in own:
            grad = tensor.grad if tensor.is_leaf and issubclass(type(tensor), parameter) else None
            (kept if grad is None or grad.grad_fn is None else orphans).append(tensor)
        elif id(tensor) in in_groups:
            in_groups_alone.append(tensor)
    tensor = None
    # references: the two lists, the variable, and the optimizer's
    unused = [one for one in in_groups_alone if not held_by_python(one, 3 + in_groups[id(one)])]
    if len(unused) >= POLICY.container_tensors:
        kept += unused
        known = without_tensors(known, unused)
    if looked_at < count:
        left_out += f"{'; ' if left_out else ''}{count - looked_at:,} of {count:,} tensors, the older ones"
    trained = set(map(id, parameters_of_optimizers(optimizers)))
    return LiveTensors(
        kept,
        known,
        untrained,
        sum(live.values()),
        count,
        len(every),
        orphans,
        retired,
        tensor_types,
        left_out,
        modules,
        trained,
    )


def in_use(seen: LiveTensors, alive: list[Any]) -> LiveTensors:
    """The same where these retired optimizers are in use: what they train, its gradients and their state belong to the model."""
    theirs = of_the_model([], alive)
    parameters = {id(parameter) for parameter in parameters_of_optimizers(alive)}
    return seen._replace(
        kept=[
            tensor
            for tensor in seen.kept
            if (storage := storages.storage_of(tensor)) is None or storage[0] not in theirs
        ],
        known={**seen.known, **theirs},
        models=[
            (tensor, module)
            for tensor, module in seen.models
            if not any(id(parameter) in parameters for parameter in parameters_of(module))
        ],
    )


def _of_all_objects(of_tensors: set[type], others: set[type], time: TimeBudget) -> tuple[list[Any], list[Any], int]:
    """At most MOST_TENSORS tensors, the oldest first; objects of the other types; and the number of tensors.

    Raises _TooManyObjects where the pass would not end in time.
    """
    costs = time.costs
    ordinary = time_budget.ORDINARY
    if costs.objects > ordinary and not costs.is_counted and not _fits(costs.objects, time):
        _count(time)
    time.is_ordinary = costs.objects <= ordinary
    if not time.is_ordinary and not _fits(costs.objects, time):
        costs.left_out(time_budget.PASS)
        raise _TooManyObjects(TOO_MANY)
    began = time.taken
    found, objects = live_objects.of_types(of_tensors | others)
    is_other = frozenset(map(id, others)).__contains__
    rest = list(compress(found, map(is_other, map(id, map(type, found)))))
    count = len(found) - len(rest)
    newest = [thing for thing in found[-MOST_TENSORS - len(rest) :] if type(thing) in of_tensors][-MOST_TENSORS:]
    del found
    costs.counted(objects)
    costs.measured(time_budget.PASS, objects, time.taken - began)
    return newest, rest, count


def _fits(objects: int, time: TimeBudget) -> bool:
    return time.allows(time.costs.of(time_budget.PASS, objects), time_budget.OBJECTS)


def _count(time: TimeBudget) -> None:
    """Count the objects where their number is unknown: a quarter of all memory blocks may be objects, or all of them."""
    costs = time.costs
    if time.allows(costs.of(time_budget.COUNT, costs.objects) / 2, PART_FOR_COUNTING):
        costs.counted(live_objects.count())


def of_the_model(modules: list[Any], optimizers: list[Any]) -> Storages:
    """Storages of parameters, buffers, gradients and optimizer state.

    Buffers and state with a graph are left out: they keep more than themselves. So are computed weights that a module has during
    ``torch.func.functional_call``.
    """
    known: Storages = {}
    for module in modules:
        for tensor in list((module.__dict__.get("_parameters") or {}).values()):
            if tensor is not None and not is_result(tensor):
                add_with_gradient(known, tensor)
        for tensor in list((module.__dict__.get("_buffers") or {}).values()):
            # A large buffer may be one that the user makes longer and longer.
            is_small = tensor is not None and tensor.numel() * tensor.element_size() < POLICY.large_buffer_bytes
            if is_small and tensor.is_leaf:
                storages.add(known, tensor)
    for optimizer in optimizers:
        for parameters in optimizer.__dict__.get("param_groups", ()):
            for tensor in list(parameters.get("params", ())):
                add_with_gradient(known, tensor)
        # A library bounds the lists that its optimizers keep; one that the user wrote may have forgotten to.
        depth = 3 if _of_a_library(type(optimizer)) else 1
        for state in list(optimizer.__dict__.get("state", {}).values()):
            _add_all(known, state, depth)
    return known


def is_result(tensor: Any) -> bool:
    """Whether an operation made the tensor. A view is none: with FSDP the weights are views of one flat parameter."""
    return not tensor.is_leaf and not tensor._is_view()


def _of_a_library(kind: type) -> bool:
    """True where a class and all its bases come from installed packages."""
    named = {type_info.module_of(base) for base in type_info.bases(kind)}
    foreign = {name for name in named if name.partition(".")[0] not in ("torch", "builtins", "typing")}
    return not foreign or foreign.isdisjoint(module.__dict__.get("__name__") for module in name_roots.user_modules())


def models_without_optimizer(modules: list[Any], optimizers: list[Any]) -> list[tuple[Any, Any]]:
    """(largest parameter, outermost module) of each tree of modules of which no optimizer has a parameter. 1 µs a module."""
    trained = {id(parameter) for parameter in parameters_of_optimizers(optimizers)}
    inner = {id(child) for module in modules for child in (module.__dict__.get("_modules") or {}).values()}
    found = []
    for module in modules:
        if id(module) not in inner:
            parameters = parameters_of(module)
            if parameters and not any(id(parameter) in trained for parameter in parameters):
                found.append((max(parameters, key=lambda parameter: int(parameter.numel())), module))
    return found


def parameters_of_optimizers(optimizers: Iterable[Any]) -> list[Any]:
    """Parameters in the groups of optimizers."""
    return [
        parameter
        for optimizer in optimizers
        for parameters in optimizer.__dict__.get("param_groups", ())
        for parameter in parameters.get("params", ())
    ]


def parameters_of(module: Any) -> list[Any]:
    """Parameters of a module and its submodules, each once; read from ``__dict__``, so that no code of the user runs."""
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


def tensors_of(owner: Any) -> list[Any]:
    """Parameters and gradients of a module; of an optimizer its state alone, as its parameters may be in use."""
    import torch

    if issubclass(type(owner), torch.nn.Module):
        return with_gradients(parameters_of(owner))
    values = [
        value
        for state in list(owner.__dict__.get("state", {}).values())
        if type(state) is dict
        for value in list(state.values())
    ]
    return [value for value in values if issubclass(type(value), torch.Tensor)]


def add_with_gradient(known: Storages, tensor: Any) -> None:
    """Add a tensor's storage, and its gradient's if it has one."""
    for one in with_gradients([tensor]):
        storages.add(known, one)


def with_gradients(tensors: list[Any]) -> list[Any]:
    """Tensors, and their gradients if they have some."""
    return tensors + [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]


def _add_all(known: Storages, value: Any, depth: int) -> None:
    import torch

    kind = type(value)
    if issubclass(kind, torch.Tensor):
        if value.is_leaf:
            storages.add(known, value)
    elif depth and kind in (dict, list, tuple):
        for part in list(value.values() if kind is dict else value):
            _add_all(known, part, depth - 1)


def _in_groups_alone(modules: list[Any], optimizers: list[Any]) -> dict[int, int]:
    """Number of references that optimizers have to each of their parameters that no module has, by its id. Where nothing else
    refers to one, no code can compute with it."""
    of_modules = {
        id(parameter) for module in modules for parameter in (module.__dict__.get("_parameters") or {}).values()
    }
    references = collections.Counter(
        id(parameter) for parameter in parameters_of_optimizers(optimizers) if id(parameter) not in of_modules
    )
    if references:
        keys = (id(key) for optimizer in optimizers for key in list(optimizer.__dict__.get("state", ())))
        references.update(key for key in keys if key in references)
    return references


def without_tensors(known: Storages, tensors: list[Any]) -> Storages:
    theirs = {storage[0] for tensor in tensors if (storage := storages.storage_of(tensor)) is not None}
    return {storage: size for storage, size in known.items() if storage not in theirs}


def with_python_owner(
    live: LiveTensors, ignored: Callable[[Any], bool], time: TimeBudget, not_scanned: list[str]
) -> set[int]:
    """Ids of the tensors that a Python object refers to, the newest first, as far as the time allows."""
    owned: set[int] = set()
    for position in range(len(live.kept)):
        if not position % AT_ONCE and time.over(time_budget.WANTED, position, LEAST_TENSORS):
            not_scanned.append(
                f"the older {len(live.kept) - position:,} of {len(live.kept):,} tensors that a variable may retain"
            )
            break
        tensor = live.kept[position]  # enumerate() would refer to it too
        if held_by_python(tensor, 2) and not ignored(tensor):  # references: the list, the variable
            owned.add(id(tensor))
    return owned


def held_by_python(tensor: Any, extra: int) -> bool:
    """True where a Python object refers to the tensor, not only C++ (a graph that saved it).

    tensor  in a variable of the caller
    extra   references of the caller, that variable included
    """
    if native_owners_count():
        native = 1 if tensor._use_count() > 1 else 0
    else:
        native = 0
        _given_back_to_python(tensor)
    return sys.getrefcount(tensor) - OF_ARGUMENT - extra - native > 0


@functools.cache
def native_owners_count() -> bool:
    """True where C++ has one reference to the Python object of each tensor that it refers to, as in PyTorch 2.10 and later.

    Earlier versions have none while Python has one, and take over the last reference that Python drops."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        holder, held = torch.empty(0, device="cpu", requires_grad=True), torch.empty(0, device="cpu")
        alone = sys.getrefcount(held)
        holder.grad = held
        return sys.getrefcount(held) > alone


def _given_back_to_python(tensor: Any) -> None:
    """Make Python the owner of the object where C++ was, until we drop it."""
    import torch

    torch._C._functorch.unwrap_if_dead(tensor)
