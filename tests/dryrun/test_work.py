"""The work of a step: counted by hand for each operator, and in a dry run that has the same peaks with and without counting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from vramscope.dry_run.work import flops_of
from vramscope_server.cli.dryrun.cards import card_named
from vramscope_server.cli.dryrun.libraries import libraries_for, torch_of
from vramscope_server.cli.dryrun.training import Plan, train
from vramscope_server.cli.dryrun.verdict import CONTEXT_HIGH_BYTES, LARGE_BYTES
from vramscope_server.figures.memory_against_work import Point, draw

NONE: list[int] = []
CALLS: dict[str, tuple[str, list[list[int]], list[Any], int]] = {
    "a product": ("aten::mm", [[3, 5], [5, 7]], [], 2 * 3 * 5 * 7),
    "with a bias": ("aten::addmm", [[7], [3, 5], [5, 7], NONE], [], 2 * 3 * 5 * 7),
    "a batch": ("aten::bmm", [[2, 3, 5], [2, 5, 7]], [], 2 * 2 * 3 * 5 * 7),
    "of experts": ("aten::_grouped_mm", [[9, 5], [4, 5, 7], [4]], [], 2 * 9 * 5 * 7),
    "attention with fewer keys": (
        "aten::_scaled_dot_product_flash_attention", [[2, 8, 16, 4], [2, 2, 32, 4], [2, 2, 32, 6]], [],
        2 * 2 * 8 * 16 * 32 * (4 + 6),
    ),
    "its backward pass": (
        "aten::_scaled_dot_product_efficient_attention_backward", [[2, 8, 16, 6], [2, 8, 16, 4], [2, 8, 32, 4], [2, 8, 32, 6]],
        [], 2 * 2 * 8 * 16 * 32 * (3 * 4 + 2 * 6),
    ),
    "a convolution": (
        "aten::convolution", [[2, 3, 16, 10], [16, 3, 3, 3]], [None, None, None, [2, 1], [1, 1], [1, 2], False, [0, 0], 1],
        2 * 2 * (16 * 3 * 3 * 3) * (8 * 8),
    ),
    "in groups": (
        "aten::convolution", [[2, 16, 8], [16, 4, 3]], [None, None, None, [1], [1], [1], False, [0], 4],
        2 * 2 * (16 * 4 * 3) * 8,
    ),
    "transposed": (
        "aten::convolution", [[2, 16, 8, 8], [16, 8, 4, 4]], [None, None, None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1],
        2 * 2 * (16 * 8 * 4 * 4) * 64,
    ),
    "gradient of the weight alone": (
        "aten::convolution_backward", [[2, 16, 8, 8], [2, 3, 16, 16], [16, 3, 3, 3]],
        [None, None, None, [16], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [False, True, True]],
        2 * 2 * (16 * 3 * 3 * 3) * 64,
    ),
    "both gradients of a transposed one": (
        "aten::convolution_backward", [[2, 8, 16, 16], [2, 16, 8, 8], [16, 8, 4, 4]],
        [None, None, None, [8], [2, 2], [1, 1], [1, 1], True, [0, 0], 1, [True, True, True]],
        2 * 2 * 2 * (16 * 8 * 4 * 4) * 64,
    ),
    "another operator": ("aten::add", [[9, 9], [9, 9]], [], 0),
}  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "values", "expected"), CALLS.values(), ids=list(CALLS))
def test_operations_follow_from_the_shapes(
    name: str, shapes: list[list[int]], values: list[Any], expected: int
) -> None:
    assert flops_of(name, lambda: shapes, lambda: values) == expected


PROGRAM = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
first, second = nn.Linear(256, 512).cuda(), nn.Linear(512, 256).cuda()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for _ in range(9):
    x = torch.ones(64, 256, device="cuda")
    with torch.autocast("cuda", enabled={repeats}):
        y = checkpoint(first, x, use_reentrant=False) if {repeats} else first(x)
        loss = second(y.relu()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ONE = 2 * 64 * 256 * 512
"""Operations of one product. The input needs no gradient."""


def test_a_step_is_counted_without_an_effect_on_its_peaks(tmp_path: Path, url: str) -> None:
    """Forward and backward need five products, and a repeated forward pass of the first layer one more. Autocast needs none."""
    libraries = libraries_for(torch_of(sys.executable))

    def run(repeats: bool, counts: bool) -> tuple[int | None, int | None, int | None]:
        script = tmp_path / "train.py"
        script.write_text(PROGRAM.format(repeats=repeats))
        plan = Plan([sys.executable, str(script)], libraries, url, 3, 120, counts_work=counts)
        trial = train(plan, card_named("a10"), LARGE_BYTES, CONTEXT_HIGH_BYTES)
        assert trial.run is not None
        return trial.reports[0].flops, trial.run["peak_allocated_bytes"], trial.run["peak_reserved_bytes"]

    plain, repeated = run(repeats=False, counts=True), run(repeats=True, counts=True)
    assert (plain[0], repeated[0]) == (5 * ONE, 6 * ONE)
    uncounted = run(repeats=True, counts=False)
    assert uncounted[0] is None
    assert uncounted[1:] == repeated[1:]


PROFILED = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        model(torch.ones(64, 256, device="cuda")).sum().backward()
    assert any(event.key == "aten::addmm" for event in profile.key_averages())
    optimizer.step()
"""


def test_the_programs_own_profiler_works_and_the_work_is_unknown(tmp_path: Path, url: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROFILED)
    plan = Plan([sys.executable, str(script)], libraries_for(torch_of(sys.executable)), url, 3, 120, counts_work=True)
    trial = train(plan, card_named("a10"), LARGE_BYTES, CONTEXT_HIGH_BYTES)
    assert (trial.end, trial.reports[0].steps, trial.reports[0].flops) == ("ended", 3, None)


def test_the_chart_has_a_point_for_each_change_and_the_least_memory_for_the_work() -> None:
    figure = draw(
        [
            Point("no change", 1.0, 9 << 30, False),
            Point("checkpointing", 1.33, 4 << 30, True),
            Point("fused", 1.0, 8 << 30, False),
        ],
        8 << 30,
    )
    labels = [trace.name for trace in figure.data]
    assert "checkpointing (fits)" in labels
    assert "fused (does not fit)" in labels
    front = next(trace for trace in figure.data if trace.meta["role"] == "pareto")
    assert list(front.x) == [1.0, 1.33]
    assert not draw([]).data
