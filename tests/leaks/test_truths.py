"""The labels are true: each leak is there and as large as it says, its fix takes it away, and innocents do not grow.

Measured by the allocator's own counters on the (emulated) GPU, with and without the fix; the detector has no part in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from child import ANSWER_WITHIN_SECONDS
from corpus import cases
from evidence import against_innocence, against_leak, heap_bytes_per_step, readings_of

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("leaks-truths"), pytest.mark.timeout(3 * ANSWER_WITHIN_SECONDS)]

LEAKS = sorted(name for name, case in cases().items() if not case.truth.innocent)
INNOCENT = sorted(name for name, case in cases().items() if case.truth.innocent)


@pytest.mark.parametrize("name", LEAKS)
def test_the_leak_is_there_and_its_fix_takes_it_away(scales, name: str) -> None:
    truth = cases()[name].truth
    broken = readings_of(scales, name, truth)
    mended = readings_of(scales, name, truth, mended=True)
    assert against_leak(truth, broken, mended) == []


@pytest.mark.parametrize("name", INNOCENT)
def test_an_innocent_loop_does_not_grow(scales, name: str) -> None:
    truth = cases()[name].truth
    assert against_innocence(truth, readings_of(scales, name, truth)) == []


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("growing.running_total", {"bytes_each": 20_000}, "the fix frees"),
        ("tensors.detached_features", {"bytes_each": 24 * 256 * 4}, "the fix frees"),
        ("tensors.detached_features", {"nodes": True}, "graphs more"),
        ("overlap.logits_of_a_language_model", {"held_bytes": 1 << 20}, "at a step's start"),
        ("overlap.retained_graph", {"kinds": ("no_grad-missing",), "held_bytes": 1 << 20}, "the peak falls by"),
    ],
)
def test_a_wrong_label_is_found_out(scales, name: str, wrong: dict[str, object], expected: str) -> None:
    """Or the tests above would prove nothing."""
    truth = cases()[name].truth
    broken = readings_of(scales, name, truth)
    mended = readings_of(scales, name, truth, mended=True)
    assert expected in " ".join(against_leak(dataclasses.replace(truth, **wrong), broken, mended))


@pytest.mark.parametrize("name", ["growing.list_of_losses", "tensors.global_cache", "evaluation.generation"])
def test_a_leak_is_no_innocent_and_one_without_a_fix_is_found_out(scales, name: str) -> None:
    truth = cases()[name].truth
    broken = readings_of(scales, name, truth)
    assert against_innocence(truth, broken)
    assert against_leak(truth, broken, broken)


def test_what_the_heap_takes_once_is_no_growth() -> None:
    """Also where it is taken in the middle of the loop, and between the readings of the mended one."""

    def more(heap: Callable[[int], int]) -> float:
        nothing = {"heap_bytes": 0}
        return heap_bytes_per_step([({"steps": step, "heap_bytes": heap(step)}, nothing) for step in range(27)], 1)

    assert more(lambda step: 200_000 * (step >= 15)) == 0
    assert more(lambda step: 2_000 * step) == 2_000
    assert more(lambda step: 2_000 * step + 200_000 * (step >= 15)) == 2_000
