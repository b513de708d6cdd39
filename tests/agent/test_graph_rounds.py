"""What ends a round before the first step of an optimizer, and how that changes the reported leaks."""

import dataclasses

import pytest
import torch
from scans import watched
from torch import nn
from torch.nn import functional as F

from vramscope.leaks import loop_shape
from vramscope.leaks.detector import LeakDetector
from vramscope.leaks.policy import POLICY
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks


@pytest.fixture
def training():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 256))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model, rows=64):
    x, y = torch.randn(rows, 32), torch.randint(0, 256, (rows,))
    out = model(x)
    return out, F.cross_entropy(out, y)


def report_of(scans):
    return [(scan.step, leak.kind, leak.name) for scan in scans for leak in scan.leaks]


def test_what_a_step_gathers_of_its_micro_steps_is_no_growth_in_the_first_one_either(training) -> None:
    model, optimizer = training
    with watched() as scans:
        for _ in range(5):
            outputs = []
            for _ in range(40):
                out, loss = loss_of(model)
                loss.backward()
                outputs.append(out.detach())
            optimizer.step()
            optimizer.zero_grad()
            torch.cat(outputs).mean()
    assert scans
    assert report_of(scans) == []


@pytest.mark.parametrize("micro_steps", [1, 40])
def test_a_result_that_is_held_over_is_told_after_as_many_steps_however_many_backwards_the_first_had(
    training, micro_steps: int
) -> None:
    model, optimizer = training
    with watched() as scans:
        for _ in range(9):
            for _ in range(micro_steps):
                out, loss = loss_of(model, rows=512)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    del out, loss
    assert report_of(scans)[0] == (7, "overlap", "out")


@pytest.mark.parametrize("micro_steps", [1, 6])
def test_a_value_that_is_carried_on_reaches_back_through_the_steps_that_there_were(training, micro_steps: int) -> None:
    model, optimizer = training
    total = torch.zeros(())
    with watched() as scans:
        for _ in range(23):
            for _ in range(micro_steps):
                _, loss = loss_of(model)
                loss.backward()
                total = total + loss
            optimizer.step()
            optimizer.zero_grad()
    (leak,) = scans[-1].leaks
    assert (leak.kind, leak.name, leak.count, leak.last_step) == ("growing", "total", 21, 21)


def test_beside_an_optimizer_that_never_steps_what_grows_is_told_all_the_same(training, monkeypatch) -> None:
    model, optimizer = training
    monkeypatch.setattr(loop_shape, "POLICY", dataclasses.replace(POLICY, unstepped_backwards=20))
    losses = []
    with watched() as scans:
        for _ in range(60):
            _, loss = loss_of(model)
            loss.backward()
            losses.append(loss)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
    assert optimizer is not None
    assert [(leak.kind, leak.name) for leak in scans[-1].leaks] == [("growing", "losses")]


def test_a_step_that_is_told_by_its_end_alone_is_one_round(training) -> None:
    """As of an optimizer that updates within the backward, and of ``session.step()``."""
    model, _ = training
    total = torch.zeros(())
    scans: list = []
    clock = StepClock()
    hooks = LoopHooks(clock)
    hooks.graphs = LeakDetector(clock, report=scans.append)
    hooks.install([model])
    try:
        for _ in range(23):
            _, loss = loss_of(model)
            loss.backward()
            total = total + loss
            model.zero_grad()
            clock.end_step()
    finally:
        hooks.remove()
    (leak,) = scans[-1].leaks
    assert (leak.name, leak.count, leak.last_step) == ("total", 21, 21)
