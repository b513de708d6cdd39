"""Scans that a training needs: few where nothing is retained, and the usual ones from the step on in which memory rises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

STEPS = 120


@contextlib.contextmanager
def watched() -> Iterator[list[Any]]:
    """Scans of what trains inside."""
    import torch

    from vramscope.integrations import plain
    from vramscope.leaks.detector import LeakDetector
    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks

    torch.empty(1, device="cuda")
    scans: list[Any] = []
    clock = StepClock()
    clock.watch(share_peak_counters().watch(0))
    hooks = LoopHooks(clock)
    hooks.graphs = LeakDetector(clock, report=scans.append, seconds=10.0)
    hooks.install()
    plain.connect(None, hooks)
    try:
        yield scans
    finally:
        hooks.remove()


def train(after_step: Callable[[int, Any], None]) -> list[Any]:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with watched() as scans:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss = model(torch.zeros(32, 64, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            after_step(step, loss)
    return scans


def test_a_loop_without_a_leak_is_scanned_three_times() -> None:
    scans = train(lambda step, loss: None)
    assert [scan.step for scan in scans] == [3, 7, 11]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_leak_that_starts_late_is_reported(device: str) -> None:
    """In GPU memory and in host memory; 16 KiB a step from step 13 on."""
    import torch

    history = []

    def keep(step: int, loss: Any) -> None:
        if step > 12:
            history.append(torch.zeros(4096, device=device))

    scans = train(keep)
    assert [leak.name for leak in scans[-1].leaks] == ["history"]


def test_a_list_of_losses_is_reported_at_the_usual_step() -> None:
    history = []
    scans = train(lambda step, loss: history.append(loss))
    first = next(scan for scan in scans if scan.leaks)
    assert (first.step, first.leaks[0].kind) == (11, "growing")
