"""Scans that a training needs: few where nothing is retained, and the usual ones from the step on in which memory rises."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

pytestmark = pytest.mark.gpu

TRAINING = """
import json, sys
import torch
from torch import nn
from vramscope.guard import guard
from vramscope.integrations import plain
from vramscope.leaks.detector import LeakDetector
from vramscope.memory.peak_counters import share_peak_counters
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks

guard.raise_faults = True
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scans, history = [], []
clock = StepClock()
clock.watch(share_peak_counters().watch(0))
hooks = LoopHooks(clock)
hooks.graphs = LeakDetector(clock, report=scans.append, seconds=10.0)
hooks.install()
plain.connect(None, hooks)
for step in range(1, 121):
    optimizer.zero_grad()
    loss = model(torch.zeros(32, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    AFTER_STEP
print(json.dumps([[scan.step, [[leak.kind, leak.name] for leak in scan.leaks]] for scan in scans]))
"""


def scans_of(after_step: str) -> list[tuple[int, list[list[str]]]]:
    """Step and findings of each scan, of a training in a process of its own."""
    done = warm.run(textwrap.dedent(TRAINING).replace("AFTER_STEP", after_step), timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(step, leaks) for step, leaks in json.loads(done.stdout.splitlines()[-1])]


def test_a_loop_without_a_leak_is_scanned_twice() -> None:
    assert [step for step, _ in scans_of("pass")] == [3, 7]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_leak_that_starts_late_is_reported(device: str) -> None:
    """In GPU memory and in host memory; 16 KiB a step from step 13 on."""
    scans = scans_of(f"if step > 12: history.append(torch.zeros(4096, device='{device}'))")
    assert [name for _, name in scans[-1][1]] == ["history"]


def test_a_list_of_losses_is_reported_at_the_usual_step() -> None:
    first = next((step, leaks) for step, leaks in scans_of("history.append(loss)") if leaks)
    assert first == (11, [["growing", "history"]])
