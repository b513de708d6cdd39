"""The line of an evaluation whose graphs no variable retains when a scan runs."""

from __future__ import annotations

import pytest
import torch
from scans import watched
from torch import nn


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        made = model(torch.randn(512, 64))
        made.square().mean().backward()
        optimizer.step()


def draw(model: nn.Module) -> list[torch.Tensor]:
    """Three pictures of which each has a variable of its own until the function returns."""
    first = model(torch.randn(512, 64))
    second = model(torch.randn(512, 64))
    third = model(torch.randn(512, 64))
    return [first.detach(), second.detach(), third.detach()]


@pytest.mark.parametrize("draws", [True, False])
def test_the_line_is_one_of_the_evaluation_and_not_of_the_step_after_it(draws: bool) -> None:
    """The scan follows the third picture: the next call of the model is one of the training."""
    model = generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched(5.0) as scans:
        for _ in range(6):
            train(model, optimizer, 5)
            if draws:
                draw(model)
    found = [(leak.name, leak.function) for scan in scans for leak in scan.leaks if leak.kind == "no_grad-missing"]
    assert set(found) == ({("Sequential", "draw")} if draws else set())


def forward(model: nn.Module, learns: bool, optimizer: torch.optim.Optimizer) -> float:
    """One function for the training and for the validation."""
    total = 0.0
    for _ in range(5):
        loss = model(torch.randn(512, 64)).square().mean()
        if learns:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
        del loss
    return total


def test_a_line_that_trains_too_is_named_where_its_graphs_are_dropped() -> None:
    model = generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched(5.0) as scans:
        for _ in range(6):
            forward(model, True, optimizer)
            forward(model, False, optimizer)
    found = [leak for scan in scans for leak in scan.leaks if leak.kind == "no_grad-missing"]
    assert {leak.function for leak in found} == {"forward"}
    line = forward.__code__.co_firstlineno + 4
    assert {leak.line for leak in found} == {line}
