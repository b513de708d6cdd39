"""Steps of a training whose weights are tensors of no module, updated by hand, as in PyTorch's first tutorial."""

from __future__ import annotations

import gc

import pytest
import torch

from vramscope.integrations.extensions import extend
from vramscope.process.live_objects import living
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks


@pytest.mark.parametrize("clears", ["dropped", "zeroed"])
def test_each_update_of_bare_weights_ends_a_step(clears: str) -> None:
    if living(torch.optim.Optimizer):  # of an earlier test, in a cycle
        gc.collect()
    clock = StepClock()
    hooks = LoopHooks(clock)
    extend(hooks)
    hooks.install()
    a, b = torch.randn(8, 8, requires_grad=True), torch.randn(8, 1, requires_grad=True)
    try:
        for _ in range(4):
            ((torch.randn(4, 8) @ a).relu() @ b).square().mean().backward()
            with torch.no_grad():
                for weight in (a, b):
                    weight -= 0.1 * weight.grad
                    if clears == "dropped":
                        weight.grad = None
                    else:
                        weight.grad.zero_()
        hooks.end_last_step_by_hand()
    finally:
        hooks.remove()
    assert [step.micro_steps for step in clock.take()] == [1, 1, 1, 1]
