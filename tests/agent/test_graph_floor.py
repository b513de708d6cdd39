"""The floor: which courses of a training's memory, seen at the ends of its steps, make somebody look."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from vramscope.leaks.memory_after_step import MemoryAfterStep
from vramscope.protocol.series import UNKNOWN

MIB = 1 << 20


def rose_at(values: Iterable[int]) -> int | None:
    """The step after which it first rose."""
    floor = MemoryAfterStep()
    for step, value in enumerate(values, 1):
        assert floor.add(value) == value
        if floor.rises:
            return step
    return None


@pytest.mark.parametrize(
    ("course", "until"),
    [
        (lambda step: step * MIB, 12),
        (lambda step: step // 30 * MIB, 200),
        (lambda step: step // 1000 * MIB + step % 7 * MIB, 5000),
    ],
    ids=["in each step", "once an epoch", "once in a thousand steps"],
)
def test_what_is_kept_makes_it_rise_on_the_scale_of_its_pace(course: Callable[[int], int], until: int) -> None:
    rose = rose_at(map(course, range(until)))
    assert rose is not None
    assert rose > until // 4, "and not before it could be known"


@pytest.mark.parametrize(
    "course",
    [
        lambda step: 100 * MIB,
        lambda step: 100 * MIB + step % 4 * MIB,
        lambda step: min(step, 7) * MIB,
        lambda step: -step * MIB,
        lambda step: step * 100,
    ],
    ids=["level", "another in each of four steps", "filled in the first steps", "falling", "less than a word is worth"],
)
def test_what_is_not_kept_does_not(course: Callable[[int], int]) -> None:
    assert rose_at(map(course, range(3, 1000))) is None


def test_what_is_not_known_is_no_value() -> None:
    floor = MemoryAfterStep()
    for step in range(12):
        assert floor.add(UNKNOWN) == UNKNOWN
        floor.add(step * MIB)
    assert floor.rises
