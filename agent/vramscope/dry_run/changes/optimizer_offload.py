"""Simulates an optimizer on the CPU: its state and the temporary tensors of its update are not on the GPU.

The update itself is not computed in a dry run. In a real training it runs on the CPU, on copies of weights and gradients.
"""

from __future__ import annotations

from typing import Any, Final

from vramscope.dry_run.changes.change import Change
from vramscope.guard import guarded

NOT_ALONE: Final = "LBFGS"
"""Optimizer that has its own list of parameters."""


class OptimizerOffload(Change):
    """Runs each ``step()`` of an optimizer without parameters."""

    name = "optimizer_offload"
    reason = "no optimizer of PyTorch stepped"

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[int, list[list[Any]]] = {}

    def install(self) -> None:
        """Remove the parameters from the optimizer before each step, and restore them after it."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        take = guarded("a change of the dry run")(self._take)
        restore = guarded("a change of the dry run")(self._restore)
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: take(optimizer, args, kwargs))
        register_optimizer_step_post_hook(lambda optimizer, *_: restore(optimizer))

    def _take(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._restore(optimizer)  # the step before ended with an error
        name = type(optimizer).__name__
        groups = optimizer.param_groups
        if any(map(callable, (*args[1:], *kwargs.values()))):
            self.reason = "step() gets a closure, which works with the parameters that the change takes away"
            return
        if name == NOT_ALONE or not any(one.is_cuda for group in groups for one in group["params"]):
            self.reason = f"{name} cannot run on the CPU in this way"
            return
        self._taken[id(optimizer)] = [group["params"] for group in groups]
        for group in groups:
            group["params"] = []
        self.applied(
            name,
            "from torchao.optim import CPUOffloadOptimizer",
            f"optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.{name}, ...)",
        )

    def _restore(self, optimizer: Any) -> None:
        for group, parameters in zip(optimizer.param_groups, self._taken.pop(id(optimizer), ()), strict=False):
            group["params"] = parameters
