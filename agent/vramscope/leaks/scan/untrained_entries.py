"""Entries of a model's containers that were trained earlier and no longer are: an adapter, a prompt or a head for each task.

They are parameters of a live module, so the scan counts them as the model's. But where the newest entry of an
``nn.ModuleDict`` trains and the others only keep their gradients, a loop adds entries and removes none. An entry that
somebody still calls is in use, in an evaluation of all tasks say, and is none of these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from vramscope.guard import guarded
from vramscope.leaks.autograd.graph_walk import NodeBudget
from vramscope.leaks.holders.grouping import Grouping, group_key
from vramscope.leaks.holders.holder import holder_of
from vramscope.leaks.holders.holder_bytes import HeldMemory, group_of
from vramscope.leaks.holders.key import HolderKey, Mechanism
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.scan.grouped_tensors import without
from vramscope.leaks.scan.paths import FoundPaths, Path
from vramscope.leaks.scan.storages import Storages
from vramscope.leaks.scan.tensors import parameters_of, with_gradients
from vramscope.process.module_calls import CallListener, module_calls


class Untrained(NamedTuple):
    """A container with entries that are no longer trained. It refers to the user's tensors: drop it after the scan."""

    container: Any
    parameters: list[Any]


class _Gradient(NamedTuple):
    """A gradient as a scan saw it."""

    parameter: weakref.ref[Any]
    gradient: weakref.ref[Any]
    version: int
    """Number of writes in place."""

    def is_of(self, parameter: Any) -> bool:
        """True if nothing has written a gradient of this parameter since."""
        owner, gradient = self.parameter(), self.gradient()
        if owner is None or owner is not parameter or gradient is None or gradient is not owner.grad:
            return False
        return bool(gradient._version == self.version)


class _Called(NamedTuple):
    """A module that is listened to."""

    module: weakref.ref[Any]
    end: Callable[[], None]


class UntrainedEntries:
    """One per session, from scan to scan. It keeps no tensor and no module."""

    def __init__(self) -> None:
        self._gradients: dict[int, _Gradient] = {}
        self._listened: dict[int, _Called] = {}
        """Modules that were not called since they were found, by id."""
        self._in_use: dict[int, weakref.ref[Any]] = {}
        """Modules that were called, by id."""
        self._listener = CallListener(guarded("model hook")(self._was_called))

    def find(self, modules: Iterable[Any], trained: AbstractSet[int]) -> list[Untrained]:
        """Containers with such entries and with one that is trained. ``trained``: ids of the parameters of optimizers that step."""
        import torch

        kinds = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
        before, self._gradients = self._gradients, {}
        found = []
        for container in modules:
            if not issubclass(type(container), kinds):
                continue
            idle, trains = [], False
            for entry, parameters in _entries_of(container):
                if not trained.isdisjoint(map(id, parameters)):
                    trains = True
                elif self._is_unused(entry, parameters, before):
                    idle += [one for one in parameters if one.grad is not None]
            if idle and trains:
                found.append(Untrained(container, idle))
        return found

    def close(self) -> None:
        """The session ends."""
        while self._listened:
            self._listened.popitem()[1].end()

    def _is_unused(self, entry: Any, parameters: Sequence[Any], before: dict[int, _Gradient]) -> bool:
        """True if it has gradients that nothing has written since the scan before, and was not called since. Notes both for the
        next scan."""
        with_gradient = [one for one in parameters if one.requires_grad and one.grad is not None]
        for one in with_gradient:
            self._gradients[id(one)] = _Gradient(weakref.ref(one), weakref.ref(one.grad), one.grad._version)
        if not with_gradient or not self._was_listened_to(entry):
            return False
        return all(id(one) in before and before[id(one)].is_of(one) for one in with_gradient)

    def _was_listened_to(self, entry: Any) -> bool:
        """True for a parameter, and for a module that was not called since an earlier scan. Begins to listen to a new one."""
        import torch

        if not issubclass(type(entry), torch.nn.Module):
            return True
        used, known = self._in_use.get(id(entry)), self._listened.get(id(entry))
        if used is not None and used() is entry:
            return False
        if known is not None and known.module() is entry:
            return True
        self._listened[id(entry)] = _Called(weakref.ref(entry), module_calls.listen(entry, self._listener))
        return False

    def _was_called(self, module: Any, args: Any, kwargs: Any) -> None:
        known = self._listened.pop(id(module), None)
        if known is not None:
            known.end()
            self._in_use[id(module)] = weakref.ref(module)


def _entries_of(container: Any) -> Iterable[tuple[Any, list[Any]]]:
    """Each entry of a container with its parameters, read from ``__dict__``, so that no code of the user runs."""
    for entry in list((container.__dict__.get("_modules") or {}).values()):
        if entry is not None:
            yield entry, parameters_of(entry)
    for parameter in list((container.__dict__.get("_parameters") or {}).values()):
        if parameter is not None:
            yield parameter, [parameter]


def groups_of_entries(
    untrained: Sequence[Untrained],
    found: FoundPaths,
    codes: Codes,
    grouping: Grouping,
    known: Storages,
    budget: NodeBudget,
) -> list[HeldMemory]:
    """What such entries retain, by the containers' holder."""
    named: dict[HolderKey, tuple[list[Path], list[Any]]] = {}
    for one in untrained:
        path = found.paths.get(id(one.container))
        if path is not None:
            element = Path(path, path.root, "[*]", type(one.parameters[0]), None, None, path.depth + 1)
            paths, parameters = named.setdefault(group_key(element, grouping), ([], []))
            paths.append(element)
            parameters += one.parameters
    groups = []
    for paths, parameters in named.values():
        holder = holder_of(paths, codes, grouping, written=True)  # the line that puts something into it
        holder = holder._replace(container=True, written=False, mechanism=Mechanism.UNTRAINED_ENTRIES)
        groups.append(group_of(holder, parameters, without(known, with_gradients(parameters)), budget))
    return groups
