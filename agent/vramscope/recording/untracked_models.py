"""Models and optimizers on a GPU that take no part in steps: a teacher, an average of the weights, an optimizer that wraps
another (SAM).

Finding them takes a visit of all objects of the process. It is left out where the allocator proves that there are none beside
those that the program's variables lead to: what PyTorch has handed out is, to the byte, the tensors of these and of the known
ones, and the workspaces of cuBLAS.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from vramscope.memory.explained_memory import is_explained, tensors_of
from vramscope.memory.variable_contents import NOTHING, VariableContents
from vramscope.process import type_info
from vramscope.process.gc_pause import collector_paused
from vramscope.process.live_objects import living, with_subclasses
from vramscope.recording.weak_members import WeakMembers
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
MAX_SWEEPS: Final = 2
"""Maximum number of sweeps in a session."""


TORCHS_OPTIMIZERS: Final = "torch.optim"
"""Package of optimizers whose steps PyTorch's global hooks report. Others may wrap one of them."""

InVariables: TypeAlias = "Callable[[Mapping[str, torch.Tensor]], VariableContents]"


class UntrackedModels:
    """Finds untracked models at attach and, for later ones, at a later window. Retains none of them.

    roots, optimizers   those that are known already
    in_variables        returns what the program's variables lead to, and copies of these parameters among it, given by name
    """

    def __init__(
        self,
        roots: Collection[torch.nn.Module],
        optimizers: Collection[torch.optim.Optimizer],
        in_variables: InVariables = lambda _: NOTHING,
    ) -> None:
        self._in_variables = in_variables
        self._contents: VariableContents | None = None
        """Contents of the variables, while a window begins."""
        self._roots = roots
        self._known_optimizers = optimizers
        self._outermost: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._found: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._optimizers = WeakMembers(self._known_optimizers, self._found)
        self._sweeps = 0
        self._just_swept = False

    def sweep(self) -> None:
        """Find untracked models and optimizers. All objects are searched if variables do not lead to all that there may be.

        With 330,000 objects (libraries imported) that takes 70 ms of processor time, nearly all of it for visiting each.
        """
        self._sweep()

    def _sweep(self) -> VariableContents | None:
        """Return what variables lead to, too, if they were read."""
        import torch

        self._sweeps, self._just_swept = self._sweeps + 1, True
        with collector_paused(), torch._C.DisableTorchFunction():  # no code of the user's tensor classes and modes
            reading = _Reading(lambda: self._in_variables(self._weights()), self._roots)
            models: Collection[torch.nn.Module]
            if any(map(_was_made, with_subclasses(torch.optim.Optimizer))) or not is_explained(
                lambda: tensors_of(self._roots, self._known_optimizers),
                reading.loose_tensors,
                lambda: tensors_of(reading.models(), reading.optimizers()),
            ):
                found = living(torch.nn.Module, torch.optim.Optimizer)
                optimizers = [thing for thing in found if issubclass(type(thing), torch.optim.Optimizer)]
                models = outermost_modules(
                    [thing for thing in found if not issubclass(type(thing), torch.optim.Optimizer)]
                )
            else:
                models, optimizers = ((), []) if reading.contents is None else (reading.models(), reading.optimizers())
            self._outermost, self._found = weakref.WeakSet(models), weakref.WeakSet(optimizers)
            self._optimizers = WeakMembers(self._known_optimizers, self._found)
            return reading.contents

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that step and those that were found."""
        return self._optimizers.living()

    def window_begins(self) -> None:
        """Sweep again if this is not the first window after a sweep. Before PyTorch records for the window.

        What variables lead to is kept for :meth:`copies`, or until :meth:`forget_variables`.
        """
        if not self._just_swept and self._sweeps < MAX_SWEEPS:
            self._contents = self._sweep()
        self._just_swept = False

    def copies(self) -> list[tuple[str, torch.Tensor]]:
        """Return the copies of the known models' parameters that variables lead to, with the variables."""
        contents = self._contents or self._in_variables(self._weights())
        self._contents = None
        return contents.copies

    def forget_variables(self) -> None:
        """Retain nothing of the program's."""
        self._contents = None

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: one for root in list(self._roots) for name, one in root.named_parameters()}

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


class _Reading:
    """Contents of the variables, read when they are first needed."""

    def __init__(self, read: Callable[[], VariableContents], roots: Collection[torch.nn.Module]) -> None:
        self._read, self._roots = read, roots
        self.contents: VariableContents | None = None

    def loose_tensors(self) -> Iterator[torch.Tensor]:
        """Yield tensors. A parameter is left out: the model that it belongs to is searched for."""
        import torch

        yield from (one for one in self._known().tensors if type(one) is not torch.nn.Parameter)

    def models(self) -> list[torch.nn.Module]:
        """Return outermost modules beside the roots."""
        modules = outermost_modules(_distinct([*self._known().models, *self._roots]))
        return [module for module in modules if module not in self._roots]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return _distinct(self._known().optimizers)

    def _known(self) -> VariableContents:
        if self.contents is None:
            self.contents = self._read()
        return self.contents


def _distinct(things: Iterable[T]) -> list[T]:
    """Return each object once. By identity: a hash may be the user's code."""
    return list({id(thing): thing for thing in things}.values())


def _was_made(kind: type) -> bool:
    """Return whether there has been an optimizer of this class, which is not PyTorch's: its ``step`` is wrapped then."""
    step = type_info.namespace(kind).get("step")
    is_torchs = type_info.module_of(kind).startswith(TORCHS_OPTIMIZERS)
    return not is_torchs and getattr(step, "hooked", False) is True
