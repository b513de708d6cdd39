"""Scans that a training needs: none where nothing is retained, and the usual ones from the step on in which memory rises."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.leaks.unchanged_since_scan import NOT_NEEDED

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
teacher = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
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
print(json.dumps([[scan.step, [[leak.kind, leak.name] for leak in scan.leaks], scan.reason] for scan in scans]))
"""


def reports_of(after_step: str, also: str = "pass") -> list[tuple[int, list[list[str]], str]]:
    """Step and findings of each report, and its reason, of a training in a process of its own.

    also   runs before each forward pass
    """
    program = textwrap.dedent(TRAINING).replace("AFTER_STEP", after_step)
    program = program.replace("    optimizer.zero_grad()", f"    optimizer.zero_grad()\n    {also}")
    done = warm.run(program, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(step, leaks, reason) for step, leaks, reason in json.loads(done.stdout.splitlines()[-1])]


def scans_of(after_step: str) -> list[tuple[int, list[list[str]]]]:
    """Step and findings of each scan."""
    return [(step, leaks) for step, leaks, reason in reports_of(after_step) if reason != NOT_NEEDED.format(step=step)]


def test_a_loop_without_a_leak_is_never_scanned() -> None:
    reports = reports_of("del loss")
    assert [step for step, *_ in reports] == [3, 7, 11, 15, 21, 29, 41, 59, 99]
    assert all(reason == NOT_NEEDED.format(step=step) for step, _, reason in reports)


def test_the_forward_that_decides_about_the_first_scan_is_seen() -> None:
    """No group of plain steps begins before it: graphs of earlier steps show only there."""
    seen = (
        "assert hooks.graphs.is_due == (not hooks.graphs.is_calm) == (step in (3, 7, 11, 15, 21, 29, 41, 59, 99)), step"
    )
    assert scans_of(f"del loss; {seen}") == []


def test_a_variable_that_lives_until_the_next_step_is_scanned() -> None:
    """The loss refers to a graph of the step before. Nothing else does, so two scans are enough."""
    assert [step for step, _ in scans_of("pass")] == [3, 7]


def test_a_second_graph_in_each_step_is_scanned() -> None:
    """No backward pass walks it, and memory after the step does not show it."""
    reports = reports_of("del loss", "target = teacher(torch.ones(4096, 64, device='cuda')).detach()")
    assert [kind for kind, _ in reports[-1][1]] == ["no_grad-missing"]


def test_several_graphs_that_backward_passes_walk_are_not_scanned() -> None:
    """As in a GAN: one is built before the step's end and walked after it."""
    walked = "other = teacher(torch.ones(32, 64, device='cuda')); teacher(torch.ones(32, 64, device='cuda')).sum().backward()"
    reports = reports_of("del loss; other.sum().backward(); del other", walked)
    assert all(reason == NOT_NEEDED.format(step=step) for step, _, reason in reports)


@pytest.mark.parametrize(("exists", "scans"), [(True, 0), (False, 1)])
def test_calls_before_the_first_step_of_a_known_optimizer_are_not_scanned(exists: bool, scans: int) -> None:
    """A rollout of reinforcement learning, where no scan is needed to find the optimizer that waits."""
    program = (
        textwrap.dedent(TRAINING)
        .partition("for step in")[0]
        .replace("seconds=10.0", f"optimizer_exists=lambda: {exists}")
    )
    rollout = """
from vramscope.leaks.scan.scanner import Scanner
scan, done = Scanner.scan, []
Scanner.scan = lambda *args: done.append(1) or scan(*args)
with torch.no_grad():
    for _ in range(40):
        model(torch.zeros(32, 64, device="cuda"))
print(len(done))
"""
    done = warm.run(program + rollout, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.splitlines()[-1]) == scans


@pytest.mark.parametrize("every", [1, 2])
def test_a_second_graph_that_only_some_steps_build_is_scanned(every: int) -> None:
    """The graph lives until the step ends, and no backward pass walks it."""
    build = f"target = teacher(torch.ones(4096, 64, device='cuda')) if step % {every} == 0 else None"
    first = next(
        step for step, _, reason in reports_of("del loss, target", build) if reason != NOT_NEEDED.format(step=step)
    )
    assert first == 3


@pytest.mark.parametrize(("device", "elements"), [("cuda", 4096), ("cpu", 16384)])
def test_a_leak_that_starts_late_is_reported(device: str, elements: int) -> None:
    """From step 13 on, 16 KiB of GPU memory a step, or 64 KiB of host memory, where less than 256 KiB in all is noise."""
    scans = scans_of(f"if step > 12: history.append(torch.zeros({elements}, device='{device}'))")
    assert [name for _, name in scans[-1][1]] == ["history"]


def test_a_leak_in_shared_memory_is_reported() -> None:
    """Batches of a loader's workers. The C allocator does not count them; 1 MiB a step from step 13 on."""
    leak = "history.append(torch.zeros(262144).share_memory_().add_(1))"
    scans = scans_of(f"del loss; {leak} if step > 12 else None")
    assert [name for _, name in scans[-1][1]] == ["history"]


def test_a_list_of_losses_is_reported_at_the_usual_step() -> None:
    first = next((step, leaks) for step, leaks in scans_of("history.append(loss)") if leaks)
    assert first == (11, [["growing", "history"]])


def test_garbage_that_is_freed_does_not_hide_a_leak() -> None:
    """200 blocks go away after step 5; from step 20 on, each step leaves one more."""
    garbage = "del loss; garbage = [torch.zeros(4096, device='cuda') for _ in range(200)] if step < 5 else None"
    scans = scans_of(f"{garbage}; history.extend([torch.zeros(4096, device='cuda')] * (step >= 20))")
    assert [name for _, name in scans[-1][1]] == ["history"]
