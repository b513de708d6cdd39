"""Ends the steps of a training that updates its weights by hand, without an optimizer.

After a backward pass some weights are noted. Their step is over once one of them was written to, or its gradient was
written to or dropped: accumulation alone does none of that between two backward passes. Only PyTorch's counts of writes are
compared: a sparse gradient has no address, and to ask for one would copy a storage that is shared until it is written to.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.process.live_objects import living, of_types

if TYPE_CHECKING:
    import torch

MOST_WEIGHTS: Final = 3
"""Number of noted weights. More than one, as a loop may skip some of its weights."""
MOST_SEARCHED: Final = 200
"""Number of weights among which those with gradients are searched."""
MOST_SEARCHES: Final = 3
"""Number of searches, at 30 ms, for the weights of a training that has no modules."""


class NotedWeight(NamedTuple):
    """A weight and its gradient as a backward pass left them. Versions count PyTorch's writes in place."""

    weight: weakref.ref[torch.Tensor]
    version: int
    gradient_version: int


class HandSteps:
    """Of one session, until an optimizer steps.

    roots   modules whose parameters are noted: a live view (a weak set). While there is none, other weights are.
    """

    def __init__(self, roots: Iterable[torch.nn.Module]) -> None:
        self._roots = roots
        self._noted: list[NotedWeight] = []
        self._bare: list[weakref.ref[torch.Tensor]] = []
        """Weights of a training without modules."""
        self._searches = 0
        self._searched_optimizers = False
        self.is_off = False
        """True once the training is known to have an optimizer."""

    def after_backward(self) -> None:
        """Note weights. Costs 3 µs and 0.2 µs for each parameter without a gradient, up to MOST_SEARCHED."""
        if self.is_off:
            return
        self._noted.clear()
        roots = list(self._roots)
        weights = (weight for root in roots for weight in root.parameters()) if roots else self._bare_weights()
        for weight in itertools.islice(weights, MOST_SEARCHED):
            if weight.is_leaf and weight.grad is not None:
                self._noted.append(NotedWeight(weakref.ref(weight), weight._version, weight.grad._version))
                if len(self._noted) == MOST_WEIGHTS:
                    return

    def _bare_weights(self) -> Iterator[torch.Tensor]:
        """Tensors with a gradient, where no module was ever called: ``a = torch.randn(3, requires_grad=True)``."""
        import torch

        weights = [weight for one in self._bare if (weight := one()) is not None]
        if not weights and self._searches < MOST_SEARCHES:
            self._searches += 1
            found = (
                one for one in of_types((torch.Tensor, torch.nn.Parameter))[0] if one.is_leaf and one.grad is not None
            )
            weights = list(itertools.islice(found, MOST_WEIGHTS))
            self._bare = list(map(weakref.ref, weights))
        return iter(weights)

    def is_over(self) -> bool:
        """True if the noted weights were updated since the backward pass. The first time, optimizers are searched: 30 ms."""
        if self.is_off or not any(map(_was_updated, self._noted)):
            return False
        self._noted.clear()
        if not self._searched_optimizers:
            import torch

            self._searched_optimizers = True
            self.is_off = bool(living(torch.optim.Optimizer))
        return not self.is_off


def _was_updated(noted: NotedWeight) -> bool:
    weight = noted.weight()
    if weight is None:
        return False
    gradient = weight.grad
    if gradient is None or weight._version != noted.version:
        return True
    return bool(gradient._version != noted.gradient_version)
