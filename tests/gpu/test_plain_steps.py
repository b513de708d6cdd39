"""Peaks of groups of plain steps against what PyTorch itself says of each step in the same loop with no agent."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

pytestmark = pytest.mark.gpu

LOOP = textwrap.dedent(
    """
    import json, random, sys, torch
    from torch import nn
    watched = sys.argv[1] == "watched"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    if watched:
        from vramscope.memory.category_split import Categories
        from vramscope.memory.peak_counters import share_peak_counters
        from vramscope.sampling.step_blocks import step_row
        from vramscope.integrations.extensions import extend
        from vramscope.steps import detail_plan
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks
        detail_plan.ALLOWANCE_NS = 0
        clock = StepClock(budget=1e-9)
        hooks = LoopHooks(clock)
        extend(hooks)
        hooks.install([model])
        clock.watch(share_peak_counters().watch(0))
        counter = clock.counters[0]
        clock.breakdown = Categories(hooks.optimizers, hooks.roots, lambda device: counter.peak_now())
    peaks, users = [], []
    sizes = random.Random(3)
    for step in range(1200):
        rows = sizes.choice((64, 128, 192)) + (320 if step == 777 else 0)
        x = torch.empty(rows, 64, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 400 == 399:
            users.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
        if not watched:
            peaks.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
            torch.cuda.reset_peak_memory_stats()
    if watched:
        clock.end_plain_steps()
        for record in clock.finished.take():
            row = step_row(record, 1, 0)
            first = row.get("first_step", row["step"])
            peaks.append([first, row["step"], row["peak_allocated_bytes"], row["peak_reserved_bytes"], row["watched"]])
    print(json.dumps([peaks, users]))
    """
)


def test_the_peak_of_a_group_is_the_highest_of_its_steps() -> None:
    def report_of(how: str) -> list:
        done = warm.run(LOOP, arguments=[how])
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    (alone, _), (watched, users) = report_of("alone"), report_of("watched")
    groups = [row for row in watched if row[1] > row[0]]
    assert len(groups) > 8, "there were plain steps"
    assert watched[0][0] == 1 and watched[-1][1] == 1200
    for first, last, allocated, reserved, _ in watched[1:]:
        assert allocated == max(peak for peak, _ in alone[first - 1 : last]), (first, last)
        assert reserved == max(peak for _, peak in alone[first - 1 : last]), (first, last)
    risen = next(place for place, row in enumerate(watched) if row[1] >= 778)
    assert all(row[0] == row[1] for row in watched[risen + 1 :][:8]), "after a higher peak each step is read"
    # The user's own counters: the highest since the start, whatever was reset in between.
    assert [peak for peak, _ in users] == [max(peak for peak, _ in alone[:until]) for until in (400, 800, 1200)]
