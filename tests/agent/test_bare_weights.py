"""Steps of a training whose weights are tensors of no module, updated by hand, as in PyTorch's first tutorial."""

from __future__ import annotations

import gc
from collections.abc import Callable

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
    assert [step.micro_steps for step in clock.finished.take()] == [1, 1, 1, 1]


def steps_of(train: Callable[[torch.Tensor, torch.Tensor], None]) -> list[int]:
    """Backward passes of each step of a training with two bare weights."""
    if living(torch.optim.Optimizer):
        gc.collect()
    clock = StepClock()
    hooks = LoopHooks(clock)
    extend(hooks)
    hooks.install()
    try:
        train(torch.randn(8, 8, requires_grad=True), torch.randn(8, 1, requires_grad=True))
        hooks.end_last_step_by_hand()
    finally:
        hooks.remove()
    return [step.micro_steps for step in clock.finished.take()]


def update(*weights: torch.Tensor) -> None:
    with torch.no_grad():
        for weight in weights:
            assert weight.grad is not None
            weight -= 0.1 * weight.grad
            weight.grad = None


def test_an_input_whose_gradient_is_cleared_ends_no_step() -> None:
    inputs = torch.randn(4, 8, requires_grad=True)  # older than the weights

    def train(a: torch.Tensor, b: torch.Tensor) -> None:
        for _ in range(4):
            for _ in range(2):
                ((inputs @ a).relu() @ b).square().mean().backward()
                inputs.grad = None
            update(a, b)

    assert steps_of(train) == [2, 2, 2, 2]


def test_gradients_of_an_earlier_training_hide_no_step() -> None:
    stale = [torch.randn(4, requires_grad=True) for _ in range(5)]
    for one in stale:
        one.sum().backward()

    def train(a: torch.Tensor, b: torch.Tensor) -> None:
        for _ in range(4):
            ((torch.randn(4, 8) @ a).relu() @ b).square().mean().backward()
            update(a, b)

    assert steps_of(train) == [1, 1, 1, 1]


def test_weights_that_replace_others_are_searched() -> None:
    """The first ones live on, with their gradients."""

    def train(a: torch.Tensor, b: torch.Tensor) -> None:
        (torch.randn(4, 8) @ a @ b).square().mean().backward()
        with torch.no_grad():
            a -= 0.1 * a.grad
        c = torch.randn(8, 1, requires_grad=True)
        for _ in range(3):
            (torch.randn(4, 8) @ c).square().mean().backward()
            update(c)

    assert steps_of(train) == [1, 1, 1, 1]
