"""What is on a GPU and nobody told of: a teacher, an average of the weights, an optimizer around another (SAM)."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from vramscope.process.gc_pause import collector_paused
from vramscope.process.live_objects import living
from vramscope.recording.weak_members import WeakMembers
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

MOST_SWEEPS: Final = 2
"""of a session"""


class UntrackedModels:
    """Looked for at attach and, for what is made meanwhile, in a later window; keeps nothing alive.

    roots, optimizers   those that are known already
    """

    def __init__(self, roots: Collection[torch.nn.Module], optimizers: Collection[torch.optim.Optimizer]) -> None:
        self._roots = roots
        self._stepping = optimizers
        self._outermost: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._optimizers = WeakMembers(self._stepping, self._found)
        self._sweeps = 0
        self._just_swept = False

    def sweep(self) -> None:
        """Look among all objects: 80 ms where there are 330,000 (libraries imported), nearly all of it to reach each."""
        import torch

        self._sweeps, self._just_swept = self._sweeps + 1, True
        with collector_paused():
            found = living(torch.nn.Module, torch.optim.Optimizer)
            optimizers = [thing for thing in found if issubclass(type(thing), torch.optim.Optimizer)]
            modules = [thing for thing in found if not issubclass(type(thing), torch.optim.Optimizer)]
            self._outermost, self._found = weakref.WeakSet(outermost_modules(modules)), weakref.WeakSet(optimizers)
            self._optimizers = WeakMembers(self._stepping, self._found)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that step, and those that were found."""
        return self._optimizers.living()

    def models(self) -> weakref.WeakSet[torch.nn.Module]:
        """Those of now, for a window; the first window after a sweep goes by that."""
        if not self._just_swept and self._sweeps < MOST_SWEEPS:
            self.sweep()
        self._just_swept = False
        others = [module for module in self._outermost if module not in self._roots]
        known = {id(parameter) for root in self._roots for parameter in root.parameters()} if others else ()
        return weakref.WeakSet(
            module
            for module in others
            if any(parameter.is_cuda and id(parameter) not in known for parameter in module.parameters())
        )
