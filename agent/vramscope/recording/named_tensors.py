"""Tensors that have a name in the program: parameters and buffers of its modules, and state of its optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory import ddp_buckets
from vramscope.memory.optimizer_states import SEQUENCES
from vramscope.recording.weak_members import WeakMembers

if TYPE_CHECKING:
    import torch

DEPTH: Final = 4
"""Depth to which lists and dicts in an optimizer's state and among a forward's arguments are opened."""


class NamedTensors:
    """Finds named tensors on the training thread. Stores ids and names only.

    optimizers   returns the live optimizers
    roots        a live view (a weak set)
    other_models models that are no root, as a weak set too
    """

    def __init__(
        self,
        optimizers: Callable[[], list[torch.optim.Optimizer]],
        roots: Collection[torch.nn.Module],
        other_models: Collection[torch.nn.Module] = (),
    ) -> None:
        import torch

        self._tensor = torch.Tensor
        self._optimizers = optimizers
        self._roots = roots
        self._other_models = other_models
        self._wrappers = WeakMembers(roots, other_models, only=ddp_buckets.is_wrapper)
        self.names: dict[int, str] = {}
        """Name of a parameter or buffer by its id."""
        self._buffered: list[weakref.ref[torch.nn.Module]] = []
        """Modules that have buffers."""

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The live optimizers."""
        return self._optimizers()

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The models that take part in steps."""
        return list(self._roots)

    @property
    def wrappers(self) -> list[torch.nn.Module]:
        """Roots and other models that are DDP wrappers."""
        return self._wrappers.living()

    def of_modules(self) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        """Return (parameters, buffers) of all modules by id, and name them.

        Takes half the time of ``named_parameters()`` and ``named_buffers()``, and has their order.
        """
        parameters: dict[int, torch.Tensor] = {}
        buffers: dict[int, torch.Tensor] = {}
        names: dict[int, str] = {}
        seen: set[int] = set()
        self._buffered.clear()
        roots = list(self._roots)
        waiting: list[tuple[str, Any]] = [
            (f"{type(root).__name__}." if len(roots) > 1 or root not in roots else "", root)
            for root in reversed([*roots, *self._other_models])
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
        """Return the parameters of the groups. Must not be changed."""
        return [group["params"] for optimizer in self.optimizers for group in optimizer.param_groups]

    def known_buffers(self) -> dict[int, torch.Tensor]:
        """Return the buffers of the modules that had some at the last :meth:`of_modules`."""
        modules = [module for reference in self._buffered if (module := reference()) is not None]
        return {id(one): one for module in modules for one in module._buffers.values() if one is not None}

    def name_all(self, ids: Iterable[int]) -> None:
        """Name these tensors as far as possible. A model's name is better than an optimizer's."""
        if self.names.keys() >= set(ids):
            return
        self.of_modules()
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__
            for at, group in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(group["params"]):
                    self.names.setdefault(id(parameter), f"parameter {place} of group {at} of {kind}")

    def tensors(self, value: Any, depth: int, what: str = "") -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (position, tensor) in lists, tuples and dicts."""
        if isinstance(value, self._tensor):
            yield what, value
        elif depth and isinstance(value, dict):
            for name, inner in list(value.items()):
                yield from self.tensors(inner, depth - 1, f"{what}.{name}" if what else str(name))
        elif depth and type(value) in SEQUENCES:
            for place, inner in enumerate(value):
                yield from self.tensors(inner, depth - 1, f"{what}[{place}]")
