"""Models and optimizers on a GPU that take no part in steps: a teacher, an average of the weights, an optimizer that wraps
another (SAM)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from vramscope.process.gc_pause import collector_paused
from vramscope.process.live_objects import living
from vramscope.recording.weak_members import WeakMembers
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

MAX_SWEEPS: Final = 2
"""Maximum number of sweeps in a session."""


CopiesOf: TypeAlias = "Callable[[Mapping[str, torch.Tensor]], Iterable[tuple[str, torch.Tensor]]]"


class UntrackedModels:
    """Finds untracked models at attach and, for later ones, at a later window. Retains none of them.

    roots, optimizers   those that are known already
    copies_of           returns (variable, tensor) of the copies of these parameters, given by name
    """

    def __init__(
        self,
        roots: Collection[torch.nn.Module],
        optimizers: Collection[torch.optim.Optimizer],
        copies_of: CopiesOf = lambda _: (),
    ) -> None:
        self.copies_of = copies_of
        self._roots = roots
        self._known_optimizers = optimizers
        self._outermost: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._optimizers = WeakMembers(self._known_optimizers, self._found)
        self._sweeps = 0
        self._just_swept = False

    def sweep(self) -> None:
        """Search all objects: 80 ms with 330,000 of them (libraries imported), nearly all of it for visiting each."""
        import torch

        self._sweeps, self._just_swept = self._sweeps + 1, True
        with collector_paused():
            found = living(torch.nn.Module, torch.optim.Optimizer)
            optimizers = [thing for thing in found if issubclass(type(thing), torch.optim.Optimizer)]
            modules = [thing for thing in found if not issubclass(type(thing), torch.optim.Optimizer)]
            self._outermost, self._found = weakref.WeakSet(outermost_modules(modules)), weakref.WeakSet(optimizers)
            self._optimizers = WeakMembers(self._known_optimizers, self._found)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that step and those that were found."""
        return self._optimizers.living()

    def models(self) -> weakref.WeakSet[torch.nn.Module]:
        """Return the current models for a window; the first window after a sweep uses its result."""
        if not self._just_swept and self._sweeps < MAX_SWEEPS:
            self.sweep()
        self._just_swept = False
        others = [module for module in self._outermost if module not in self._roots]
        known = {id(parameter) for root in self._roots for parameter in root.parameters()} if others else ()
        return weakref.WeakSet(
            module
            for module in others
            if any(parameter.is_cuda and id(parameter) not in known for parameter in module.parameters())
        )
