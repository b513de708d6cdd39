"""Entries of a model's containers that were trained earlier and no longer are: an adapter, a prompt or a head for each task.

They are parameters of a live module, so the scan counts them as the model's. But where the newest entry of an
``nn.ModuleDict`` trains and the others keep their gradients, which nothing writes, a loop adds entries and removes none. These
gradients are counted. An entry that somebody still calls is in use, in an evaluation of all tasks say, and is none of these.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from vramscope.guard import guarded
from vramscope.leaks.scan.tensors import parameters_of
from vramscope.process.module_calls import CallListener, module_calls


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

    def find(self, modules: Iterable[Any], trained: AbstractSet[int]) -> list[tuple[Any, list[Any]]]:
        """Containers that have such entries and one that is trained, with the parameters of such entries.

        trained   ids of the parameters of optimizers that step
        """
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
                found.append((container, idle))
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
