"""Ends the steps of a training that updates its weights by hand, without an optimizer.

After a backward pass some weights are noted whose gradients it wrote. Their step is over once one of them was written to, or
its gradient was written to or dropped: accumulation alone does none of that between two backward passes. Where no module is
known, an input may have a gradient too: then the gradients of all must be cleared. Only PyTorch's counts of writes are
compared: a sparse gradient has no address, and to ask for one would copy a storage that is shared until it is written to.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.process.live_objects import living, of_types
from vramscope.process.tensor_reads import TensorReads

if TYPE_CHECKING:
    import torch

MOST_WEIGHTS: Final = 3
"""Number of noted weights of modules. More than one, as a loop may skip some of its weights."""
MOST_SEARCHED: Final = 200
"""Number of weights among which those with gradients are searched."""
MOST_SEARCHES: Final = 3
"""Number of searches, at 30 ms, for the weights of a training that has no modules."""


class NotedWeight(NamedTuple):
    """A weight and its gradient as a backward pass left them. Versions count PyTorch's writes in place."""

    weight: weakref.ref[torch.Tensor]
    version: int
    gradient: weakref.ref[torch.Tensor]
    gradient_version: int

    def was_written(self) -> bool:
        weight = self.weight()
        return weight is not None and weight._version != self.version

    def has_gradient(self, gradient: torch.Tensor | None) -> bool:
        """Return whether this is the noted gradient, unchanged."""
        if self.gradient() is not gradient:
            return False
        return gradient is not None and gradient._version == self.gradient_version

    def was_cleared(self) -> bool:
        weight = self.weight()
        return weight is not None and not self.has_gradient(weight.grad)


class HandSteps:
    """Finds the steps of a loop that updates its weights by hand, until an optimizer steps. One per session.

    roots   modules whose parameters are noted: a live view (a weak set). While there is none, other weights are.
    reads   those of the session
    """

    def __init__(self, roots: Iterable[torch.nn.Module], reads: TensorReads | None = None) -> None:
        self._roots = roots
        self._reads = reads or TensorReads()
        self._noted: list[NotedWeight] = []
        self._seen: dict[int, NotedWeight] = {}
        """Every weight that the last backward pass was compared with, by id."""
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
        with self._reads as may_read:
            if may_read:
                self._note_weights()

    def _note_weights(self) -> None:
        roots = list(self._roots)
        if roots:
            self._note((weight for root in roots for weight in root.parameters()), MOST_WEIGHTS)
            return
        weights = [weight for one in self._bare if (weight := one()) is not None]
        self._note(weights, MOST_SEARCHED)
        if len(self._noted) < len(self._bare) or not weights:
            self._note_bare()

    def _note(self, weights: Iterable[torch.Tensor], most: int) -> None:
        """Note weights whose gradients the backward pass has written: others are left from before."""
        before, self._seen = self._seen, {}
        self._noted.clear()
        for weight in itertools.islice(weights, MOST_SEARCHED):
            if not weight.is_leaf or (gradient := weight.grad) is None:
                continue
            noted = NotedWeight(weakref.ref(weight), weight._version, weakref.ref(gradient), gradient._version)
            known = self._seen[id(weight)] = before.get(id(weight), noted)
            if known is noted or known.weight() is not weight or not known.has_gradient(gradient):
                self._seen[id(weight)] = noted
                self._noted.append(noted)
                if len(self._noted) == most:
                    return

    def _note_bare(self) -> None:
        """Search tensors with a gradient, where no module was ever called: ``a = torch.randn(3, requires_grad=True)``."""
        import torch

        if self._searches == MOST_SEARCHES:
            return
        self._searches += 1
        found = [one for one in of_types((torch.Tensor, torch.nn.Parameter))[0] if one.is_leaf and one.grad is not None]
        noted, seen = list(self._noted), dict(self._seen)
        self._note([one for one in found if id(one) not in seen], MOST_SEARCHED - len(noted))
        self._noted += noted
        self._seen |= seen
        self._bare = [one.weight for one in self._noted]

    def is_over(self) -> bool:
        """True if the noted weights were updated since the backward pass. The first time, optimizers are searched: 30 ms."""
        if self.is_off or not self._was_updated():
            return False
        self._noted.clear()
        if not self._searched_optimizers:
            import torch

            self._searched_optimizers = True
            self.is_off = bool(living(torch.optim.Optimizer))
        return not self.is_off

    def _was_updated(self) -> bool:
        if any(noted.was_written() for noted in self._noted):
            return True
        cleared = [noted.was_cleared() for noted in self._noted if noted.weight() is not None]
        return any(cleared) and (all(cleared) or not self._bare)
