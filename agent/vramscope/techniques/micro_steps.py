"""Counts micro-steps: forward and backward passes of a model whose gradients are added up before the optimizer steps."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

PROBES: Final = 8
"""Number of parameters whose gradients are checked. They show whether gradients were dropped within the step."""


class MicroStepCounter:
    """Module calls of one observed step, by micro-step."""

    def __init__(self) -> None:
        self._probes: list[weakref.ref[torch.Tensor]] = []
        self._calls: Counter[tuple[int, int]] = Counter()
        """(micro-step, module's identity) -> calls"""
        self._current = -1
        self.keeps_gradients: bool | None = None
        """See StepObservation."""

    def begin(self, parameters: Iterable[torch.Tensor]) -> None:
        """Remember some parameters with gradients, by weak references."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._probes.append(weakref.ref(parameter))
                if len(self._probes) == PROBES:
                    return

    def called(self, module: torch.nn.Module, micro_step: int) -> None:
        """Count a call of a module with gradients enabled."""
        if micro_step != self._current:
            if self._probes and all((p := probe()) is None or p.grad is None for probe in self._probes):
                self._calls.clear()  # the gradients added up so far were dropped: no accumulation
            self._current = micro_step
        self._calls[micro_step, id(module)] += 1

    def before_backward(self) -> None:
        """Check, before the first backward pass of the step, whether gradients of the step before exist."""
        if self.keeps_gradients is None and self._probes:
            parameters = [probe() for probe in self._probes]
            self.keeps_gradients = all(p is not None and p.grad is not None for p in parameters)

    def end(self, backwards: int) -> tuple[int | None, Counter[int]]:
        """Number of micro-steps (None if no call was counted), and calls of each module in them. Drops all references."""
        micro_steps: int | None = None
        forwards: Counter[int] = Counter()
        if self._current >= 0:
            walked = [(module, calls) for (step, module), calls in self._calls.items() if step < backwards]
            micro_steps = max(Counter(module for module, _ in walked).values(), default=0)
            for module, calls in walked:
                forwards[module] += calls
        self._probes.clear()
        self._calls.clear()
        return micro_steps, forwards
