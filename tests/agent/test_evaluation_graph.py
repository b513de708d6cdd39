"""The line of an evaluation whose graphs no variable retains when a scan runs."""

from __future__ import annotations

import pytest
import torch
from scans import watched
from torch import nn

from vramscope.leaks.autograd.unused_results import UnusedResults
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.schedule import ScanSchedule


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


def test_results_of_the_step_after_an_evaluation_are_no_results_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan that the evaluation causes had to wait for its time, and sees them, too."""
    model = generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    may_scan = [False]
    monkeypatch.setattr(ScanSchedule, "may_spend", lambda schedule, seconds=0.0: may_scan[0])
    with watched(5.0) as scans:
        train(model, optimizer, 3)
        draw(model)
        first = model(torch.randn(512, 64))
        second = model(torch.randn(512, 64))
        may_scan[0] = True
        third = model(torch.randn(512, 64))
        reported = [leak.name for leak in scans[-1].leaks]
        (first + second + third).square().mean().backward()
    assert reported and set(reported) <= {"first", "second"}, "one of them was taken for the evaluation's"
    assert not scans[-1].leaks
    assert {one.why[-1].reason for one in scans[-1].closed} == {"backward-ran"}


@pytest.mark.parametrize(("passes", "used"), [(1, True), (3, True), (4, False)])
def test_one_of_the_next_backward_passes_may_use_the_results(passes: int, used: bool) -> None:
    """A GAN's first backward pass is that of its discriminator."""
    model = generator()
    results, kept = UnusedResults(), model(torch.randn(8, 64))
    assert kept.grad_fn is not None
    holder = HolderKey(HolderKind.DROPPED_GRAPH, name="kept")
    results.found({holder: [kept.grad_fn._sequence_nr()]})
    for _ in range(passes):
        assert results.walked(model(torch.randn(8, 64)).sum()) == []
    assert results.walked((kept * 2).sum()) == ([holder] if used else [])


def test_what_a_large_backward_pass_uses_is_not_claimed_to_be_known() -> None:
    results, value = UnusedResults(), torch.zeros(1, requires_grad=True)
    kept = value * 2
    assert kept.grad_fn is not None
    holder = HolderKey(HolderKind.DROPPED_GRAPH, name="kept")
    results.found({holder: [kept.grad_fn._sequence_nr()]})
    for _ in range(5_000):
        value = value + 1
    assert results.walked(value.sum()) == [holder]


def test_graphs_that_are_too_large_to_be_walked_are_no_chain_of_steps() -> None:
    """Four results of which each has 1,500 nodes: one scan visits 4,000, and ends within the third."""
    model = nn.Sequential(*(layer for _ in range(300) for layer in (nn.Linear(4, 4), nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched(5.0) as scans:
        for _ in range(60):
            optimizer.zero_grad()
            first, second = model(torch.randn(8, 4)), model(torch.randn(8, 4))
            third, fourth = model(torch.randn(8, 4)), model(torch.randn(8, 4))
            (first + second + third + fourth).square().mean().backward()
            optimizer.step()
    assert any("long graphs" in scan.not_scanned for scan in scans), "the walks ended early"
    assert not [leak for scan in scans for leak in scan.leaks if leak.kind == "growing"]
