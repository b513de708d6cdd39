"""Figures of findings at the end of a run, from the memory after each step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vramscope.leaks.end_numbers import BY_MEMORY, MemorySinceScan, at_end, has_gone_on
from vramscope.memory.peak_counters import Interval
from vramscope.protocol import messages
from vramscope.protocol.series import UNKNOWN
from vramscope.steps.phase import FORWARD
from vramscope.steps.records import PhaseInterval

MIB = 1 << 20


def leak(kind: str = "growing", held_bytes: int = 10 * MIB, growth: float | None = MIB, **more: Any) -> messages.Leak:
    fields = {
        "kind": kind,
        "name": "log",
        "holder": "global 'log'",
        "count": 10,
        "first_step": 5,
        "last_step": 10,
        "held_bytes": held_bytes,
        "exclusive_bytes": held_bytes,
        "growth_bytes_per_step": growth,
        "peak_effect_bytes": held_bytes,
        "advice": "keep the number",
    }
    return messages.Leak(**{**fields, **more})


def memory(at_scan: int, after: list[int], work: int = 5 * MIB) -> MemorySinceScan:
    found = MemorySinceScan()
    found.add(at_scan, interval(at_scan + work, at_scan))
    found.scanned(10)
    for bytes_after in after:
        found.add(bytes_after, interval(bytes_after + work, bytes_after))
    return found


def interval(peak: int, after: int) -> list[PhaseInterval]:
    return [PhaseInterval(FORWARD, 0, 1, [Interval(peak, peak, after, after, 0)])]


def test_growth_goes_on_until_the_end() -> None:
    [end] = at_end([leak()], memory(100 * MIB, [(101 + step) * MIB for step in range(20)]), 30)
    assert (end.held_bytes, end.count, end.last_step, end.peak_effect_bytes) == (30 * MIB, 30, 30, 30 * MIB)


def test_two_findings_share_what_fits_their_growth() -> None:
    found = at_end([leak(), leak(growth=3 * MIB)], memory(100 * MIB, [120 * MIB] * 5), 15)
    assert [one.held_bytes for one in found] == [15 * MIB, 25 * MIB]


@pytest.mark.parametrize(
    ("findings", "after"),
    [
        ([leak()], [100 * MIB] * 20),  # memory did not rise: it was emptied, say
        ([leak()], [300 * MIB] * 20),  # ten times its growth: something else rose
        ([leak(growth=None)], [120 * MIB] * 20),
        ([leak(emptied_after=4)], [120 * MIB] * 20),
        ([leak(peak_effect_bytes=0)], [120 * MIB] * 20),  # on the host
        ([leak(last_step=4)], [120 * MIB] * 20),  # the last scan did not see it
        ([leak("cycle"), leak()], [120 * MIB] * 20),  # either may have it
        ([leak("overlap")], [120 * MIB] * 20),
    ],
)
def test_otherwise_the_figures_stay(findings: list[messages.Leak], after: list[int]) -> None:
    assert at_end(findings, memory(100 * MIB, after), 30) == findings


def test_a_bound_is_not_exceeded() -> None:
    [end] = at_end([leak(full_bytes=15 * MIB)], memory(100 * MIB, [106 * MIB] * 6), 16)
    assert end.held_bytes == 15 * MIB


def test_a_cycle_has_what_memory_rose_by_and_its_part_of_the_highest_peak() -> None:
    """It is freed now and then: at the highest peak there was more of it than at the end."""
    cycle = leak("cycle", growth=None)
    rising = memory(100 * MIB, [140 * MIB, 180 * MIB, 120 * MIB])
    [end] = at_end([cycle], rising, 13)
    assert end.held_bytes == 30 * MIB
    # without it 90 MiB remain after each step, and 5 MiB more are needed within one: 95 instead of 185
    assert (end.peak_effect_bytes, end.peak_effect) == (90 * MIB, BY_MEMORY)


def test_steps_without_a_known_peak_tell_no_effect() -> None:
    found = MemorySinceScan()
    found.add(100 * MIB, [])
    found.scanned(10)
    found.add(120 * MIB, [])
    [end] = at_end([leak("cycle", growth=None)], found, 11)
    assert end == msgspec.structs.replace(
        leak("cycle", growth=None), held_bytes=30 * MIB, count=30, exclusive_bytes=30 * MIB, last_step=11
    )


@pytest.mark.parametrize(
    ("after", "gone_on"),
    [
        ([(101 + step) * MIB for step in range(20)], True),
        ([100 * MIB] * 20, False),
        ([100 * MIB] * 5, False),
        ([100 * MIB] * 3, True),  # too few steps to show that it ended
        ([UNKNOWN] * 20, True),
    ],
)
def test_memory_shows_whether_a_container_that_may_fill_up_still_grows(after: list[int], gone_on: bool) -> None:
    assert has_gone_on([leak()], memory(100 * MIB, after)) is gone_on


@pytest.mark.parametrize(("steps", "gone_on"), [(4, True), (15, True), (25, False)])
def test_what_gets_a_tensor_every_ten_steps_may_go_on_without_one_for_a_while(steps: int, gone_on: bool) -> None:
    rare = leak(count=2, held_bytes=20 * MIB, growth=MIB)
    assert has_gone_on([rare], memory(100 * MIB, [100 * MIB] * steps)) is gone_on


@pytest.mark.parametrize(("risen", "steps", "gone_on"), [(6, 20, True), (0, 11, True), (0, 40, False), (12, 40, True)])
def test_six_tensors_with_each_new_key_come_every_twelve_steps(risen: int, steps: int, gone_on: bool) -> None:
    by_epoch = leak(count=60, held_bytes=60 * MIB, growth=MIB / 2)
    after = memory(100 * MIB, [100 * MIB] * (steps - 1) + [(100 + risen) * MIB])
    assert has_gone_on([by_epoch], after, at_once=[6]) is gone_on
