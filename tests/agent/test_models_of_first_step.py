"""Models that are found in the first backward pass, beside the one that attach was given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vramscope.integrations import plain
from vramscope.memory.variable_contents import NOTHING
from vramscope.process.inference_calls import CALLS
from vramscope.steps import root_modules
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[type]]:
    """Searches of all objects of the process."""
    done: list[type] = []
    living = root_modules.living
    monkeypatch.setattr(root_modules, "living", lambda *kinds: done.extend(kinds) or living(*kinds))
    yield done


def hooks_after_a_backward(given: nn.Module, trained: nn.Module, in_variables: list[nn.Module]) -> LoopHooks:
    hooks = LoopHooks(StepClock(), lambda: NOTHING._replace(models=in_variables))
    hooks.install()
    try:
        plain.connect(given, hooks)
        trained(torch.ones(2, 4)).sum().backward()
    finally:
        hooks.remove()
    return hooks


def test_a_model_that_a_variable_refers_to_needs_no_search(sweeps: list[type]) -> None:
    """A GAN's discriminator trains first; attach was given the generator."""
    generator, discriminator = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    hooks = hooks_after_a_backward(generator, discriminator, [discriminator, generator])
    assert set(hooks.roots) == {generator, discriminator} and sweeps == []


def test_a_model_that_no_variable_refers_to_is_searched(sweeps: list[type]) -> None:
    given, hidden = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    hooks = hooks_after_a_backward(given, hidden, [given])
    assert hidden in hooks.roots and sweeps == [nn.Module]


def test_a_part_of_the_trained_model_in_a_variable_does_not_stand_for_it(sweeps: list[type]) -> None:
    """The variable leads to one layer, and the backward pass reaches another one too."""
    given, model = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    hooks = hooks_after_a_backward(given, model, [model[0]])
    assert model in hooks.roots and sweeps == [nn.Module]


def test_a_model_is_found_that_is_made_after_another_was_only_called() -> None:
    """As of a network whose features are computed first, with gradients that nobody needs."""
    hooks = LoopHooks(StepClock())
    hooks.install()
    try:
        plain.connect(None, hooks)
        features = nn.Linear(4, 4)
        inputs = [features(torch.ones(2, 4)).detach() for _ in range(CALLS)]
        head = nn.Linear(4, 2)
        head(inputs[0]).sum().backward()
        assert {features, head} <= set(hooks.roots)
    finally:
        hooks.remove()
