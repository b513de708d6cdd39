"""What is collected without gradients is reported if an evaluation drops it at its end, and not if it becomes training data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vramscope.leaks.verdict.evaluation import EvaluationAccumulation
from vramscope.steps.phase import EVAL, FORWARD

MIB = 2**20


def step(*peaks: tuple[int, int], after: int) -> list[Any]:
    """Phases of a step as (phase, peak in MiB), with the memory after it."""
    return [
        SimpleNamespace(
            phase=phase, cuts=[SimpleNamespace(peak_allocated_bytes=peak * MIB, allocated_bytes=after * MIB)]
        )
        for phase, peak in peaks
    ]


def holder(rows: int) -> Any:
    named = SimpleNamespace(named=True, key="parts")
    return SimpleNamespace(holder=named, graphs=0, on_cpu=False, rows=rows, held_bytes=rows * MIB)


@pytest.mark.parametrize(("after", "reported"), [(10, True), (14, True), (18, False), (20, False)])
def test_a_list_is_reported_unless_most_of_it_stayed_after_the_evaluation_before(after: int, reported: bool) -> None:
    accumulation = EvaluationAccumulation()
    training = SimpleNamespace(intervals=step((FORWARD, 12), after=10))
    clock: Any = SimpleNamespace(counters=[object()], finished=SimpleNamespace(newest=training))
    accumulation.batches = 8
    accumulation.end_step(clock, step((EVAL, 30), (FORWARD, 12), after=after))
    assert accumulation.may_scan
    accumulation.batches = 4
    assert accumulation.wants_scan
    assert not [*accumulation.accumulating([holder(4)], MIB, 20 * MIB, ())]
    accumulation.batches = 12
    found = accumulation.accumulating([holder(12)], MIB, 20 * MIB, ())
    assert [group.holder.key for group in found] == (["parts"] if reported else [])
