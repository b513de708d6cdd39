"""Models and optimizers on a GPU that take no part in steps: a teacher, an average of the weights, an optimizer that wraps
another (SAM).

Finding them takes a visit of all objects of the process. It is left out where the allocator proves that there are none: what
PyTorch has handed out is, to the byte, the tensors that are known and the workspaces of cuBLAS.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from vramscope.process import type_info
from vramscope.process.gc_pause import collector_paused
from vramscope.process.live_objects import living, with_subclasses
from vramscope.recording.explained_memory import is_explained, tensors_of
from vramscope.recording.weak_members import WeakMembers
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

MAX_SWEEPS: Final = 2
"""Maximum number of sweeps in a session."""


TORCHS_OPTIMIZERS: Final = "torch.optim"
"""Package of optimizers whose steps PyTorch's global hooks report. Others may wrap one of them."""

CopiesOf: TypeAlias = "Callable[[Mapping[str, torch.Tensor]], Iterable[tuple[str, torch.Tensor]]]"


class UntrackedModels:
    """Finds untracked models at attach and, for later ones, at a later window. Retains none of them.

    roots, optimizers   those that are known already
    copies_of           returns (variable, tensor) of the copies of these parameters, given by name
    in_variables        returns the tensors that the program's variables lead to
    """

    def __init__(
        self,
        roots: Collection[torch.nn.Module],
        optimizers: Collection[torch.optim.Optimizer],
        copies_of: CopiesOf = lambda _: (),
        in_variables: Callable[[], Iterable[torch.Tensor]] = lambda: (),
    ) -> None:
        self.copies_of = copies_of
        self._in_variables = in_variables
        self._roots = roots
        self._known_optimizers = optimizers
        self._outermost: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._optimizers = WeakMembers(self._known_optimizers, self._found)
        self._sweeps = 0
        self._just_swept = False

    def sweep(self) -> None:
        """Search all objects, unless there can be no untracked model.

        With 330,000 objects (libraries imported) it takes 70 ms of processor time, nearly all of it for visiting each.
        """
        import torch

        self._sweeps, self._just_swept = self._sweeps + 1, True
        with collector_paused(), torch._C.DisableTorchFunction():  # no code of the user's tensor classes and modes
            if not self._may_exist():
                return
            found = living(torch.nn.Module, torch.optim.Optimizer)
            optimizers = [thing for thing in found if issubclass(type(thing), torch.optim.Optimizer)]
            modules = [thing for thing in found if not issubclass(type(thing), torch.optim.Optimizer)]
            self._outermost, self._found = weakref.WeakSet(outermost_modules(modules)), weakref.WeakSet(optimizers)
            self._optimizers = WeakMembers(self._known_optimizers, self._found)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that step and those that were found."""
        return self._optimizers.living()

    def window_begins(self) -> None:
        """Sweep again if this is not the first window after a sweep. Before PyTorch records for the window."""
        if not self._just_swept and self._sweeps < MAX_SWEEPS:
            self.sweep()
        self._just_swept = False

    def models(self) -> weakref.WeakSet[torch.nn.Module]:
        """Return the models of the last sweep that are still untracked and have parameters on a GPU."""
        import torch

        others = [module for module in self._outermost if module not in self._roots]
        with torch._C.DisableTorchFunction():
            known = {id(parameter) for root in self._roots for parameter in root.parameters()} if others else ()
            return weakref.WeakSet(
                module
                for module in others
                if any(parameter.is_cuda and id(parameter) not in known for parameter in module.parameters())
            )

    def _may_exist(self) -> bool:
        """Return whether memory is allocated that no known tensor explains, or an optimizer is not PyTorch's own."""
        import torch

        if any(map(_was_made, with_subclasses(torch.optim.Optimizer))):
            return True
        return not is_explained(lambda: tensors_of(self._roots, self._known_optimizers), self._loose_tensors)

    def _loose_tensors(self) -> Iterable[torch.Tensor]:
        """Yield what variables lead to. A parameter is left out: the model that it belongs to is searched for."""
        import torch

        return (one for one in self._in_variables() if type(one) is not torch.nn.Parameter)


def _was_made(kind: type) -> bool:
    """Return whether there has been an optimizer of this class, which is not PyTorch's: its ``step`` is wrapped then."""
    step = type_info.namespace(kind).get("step")
    is_torchs = type_info.module_of(kind).startswith(TORCHS_OPTIMIZERS)
    return not is_torchs and getattr(step, "hooked", False) is True
