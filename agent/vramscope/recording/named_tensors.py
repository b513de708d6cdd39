"""What a program has a name for: the parameters and buffers of its modules, and what its optimizers keep for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory import ddp_buckets
from vramscope.recording.weak_members import WeakMembers

if TYPE_CHECKING:
    import torch

DEPTH: Final = 4
"""to which lists and dicts in an optimizer's state and among a forward's arguments are opened"""


class NamedTensors:
    """Looked at on the training thread; nothing of it is kept but identities and names.

    optimizers  tells those that live
    roots       a live view (a weak set)
    onlookers   models that are no root; as a weak set, too
    """

    def __init__(
        self,
        optimizers: Callable[[], list[torch.optim.Optimizer]],
        roots: Collection[torch.nn.Module],
        onlookers: Collection[torch.nn.Module] = (),
    ) -> None:
        import torch

        self._tensor = torch.Tensor
        self._optimizers = optimizers
        self._roots = roots
        self._onlookers = onlookers
        self._wrappers = WeakMembers(roots, onlookers, only=ddp_buckets.tells)
        self.names: dict[int, str] = {}
        """identity -> name of a parameter or buffer"""
        self._buffered: list[weakref.ref[torch.nn.Module]] = []
        """modules that have buffers"""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that live."""
        return self._optimizers()

    @property
    def wrappers(self) -> list[torch.nn.Module]:
        """Roots and onlookers that tell of DDP's buckets; the others are asked once."""
        return self._wrappers.living()

    def of_modules(self) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        """(parameters, buffers) by identity, of all modules, which are named on the way.

        Half the time of ``named_parameters()`` and ``named_buffers()``, in their order.
        """
        parameters: dict[int, torch.Tensor] = {}
        buffers: dict[int, torch.Tensor] = {}
        names: dict[int, str] = {}
        seen: set[int] = set()
        self._buffered.clear()
        roots = list(self._roots)
        waiting: list[tuple[str, Any]] = [
            (f"{type(root).__name__}." if len(roots) > 1 or root not in roots else "", root)
            for root in reversed([*roots, *self._onlookers])
        ]
        while waiting:
            prefix, module = waiting.pop()
            if module is None or id(module) in seen:
                continue
            seen.add(id(module))
            if module._modules:
                waiting += [(f"{prefix}{name}.", inner) for name, inner in reversed(module._modules.items())]
            if module._buffers:
                self._buffered.append(weakref.ref(module))
            for own, found in ((module._parameters, parameters), (module._buffers, buffers)):
                for name, tensor in own.items():
                    if tensor is not None:  # as of a layer without bias
                        found[id(tensor)] = tensor
                        names.setdefault(id(tensor), prefix + name)
        self.names.update(names)
        return parameters, buffers

    def of_optimizers(self) -> list[Sequence[torch.Tensor]]:
        """Parameters, as their groups have them: to be read only."""
        return [group["params"] for optimizer in self.optimizers for group in optimizer.param_groups]

    def buffers_of_those(self) -> dict[int, torch.Tensor]:
        """The buffers of the modules that had some when all modules were last looked at."""
        modules = [module for reference in self._buffered if (module := reference()) is not None]
        return {id(one): one for module in modules for one in module._buffers.values() if one is not None}

    def name_all(self, things: Iterable[int]) -> None:
        """See to it that these have names, where anything has one for them. The models' are better than an optimizer's."""
        if self.names.keys() >= set(things):
            return
        self.of_modules()
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__
            for at, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    self.names.setdefault(id(parameter), f"parameter {place} of group {at} of {kind}")

    def tensors(self, value: Any, depth: int, what: str = "") -> Iterator[tuple[str, torch.Tensor]]:
        """(where, tensor) in lists, tuples and dicts."""
        if isinstance(value, self._tensor):
            yield what, value
        elif depth and isinstance(value, dict):
            for name, inner in list(value.items()):
                yield from self.tensors(inner, depth - 1, f"{what}.{name}" if what else str(name))
        elif depth and type(value) in (list, tuple):
            for place, inner in enumerate(value):
                yield from self.tensors(inner, depth - 1, f"{what}[{place}]")
