"""Which steps are recorded, and that the later windows keep to their share of the run's time."""

from __future__ import annotations

from vramscope.recording.plan import (
    ASKED,
    FIRST,
    LATER,
    LATER_STEP,
    LEAK,
    MAX_LEAK_WINDOWS,
    MAX_RISE_WINDOWS,
    RESERVED_ROSE,
    RISEN,
    SHARE,
    WindowPlan,
)

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def after_first(clock: Clock, *, seconds: float = 0.02, peak_bytes: int = 1000 * MIB) -> WindowPlan:
    plan = WindowPlan(now=clock)
    assert plan.next_request() is FIRST
    plan.mark_started(FIRST)
    assert plan.next_request() is None
    plan.ended(FIRST.steps, seconds, peak_bytes, 2 * peak_bytes)
    return plan


def test_a_later_window_waits_for_the_time_budget() -> None:
    clock = Clock()
    plan = after_first(clock, seconds=0.03)
    for step in range(1, 2 * LATER_STEP):
        plan.step_ended(step, 1000 * MIB, 2000 * MIB)
        assert plan.next_request() is None, "a thousandth of no time is nothing"
    clock.now_s = (0.03 + 0.01) / SHARE - 1
    assert plan.next_request() is None
    clock.now_s += 2
    assert plan.next_request() is LATER
    plan.mark_started(LATER)
    plan.ended(1, 0.01, 1000 * MIB, 2000 * MIB)
    clock.now_s = 1e9
    plan.step_ended(10_000, 1000 * MIB, 2000 * MIB)
    assert plan.next_request() is None, "there is one"


def test_a_clear_rise_of_the_peak_is_recorded_and_small_ones_are_not() -> None:
    clock = Clock()
    plan = after_first(clock)
    clock.now_s = 1e6
    plan.step_ended(4, 1060 * MIB, 2120 * MIB)
    assert plan.next_request() is None
    plan.step_ended(5, 1200 * MIB, 2400 * MIB)
    assert plan.next_request() is RISEN
    small = after_first(Clock(), peak_bytes=MIB)
    small._now.now_s = 1e6
    small.step_ended(4, 30 * MIB, 60 * MIB)
    assert small.next_request() is None, "thirty times a megabyte is no matter"


def test_a_rise_of_reserved_alone_has_its_own_reason() -> None:
    """The pieces got worse: the same steps need more of the device."""
    clock = Clock()
    plan = after_first(clock)
    clock.now_s = 1e6
    plan.step_ended(4, 1000 * MIB, 2100 * MIB)
    assert plan.next_request() is None
    plan.step_ended(5, 1000 * MIB, 2300 * MIB)
    assert plan.next_request() is RESERVED_ROSE
    plan.mark_started(RESERVED_ROSE)
    plan.ended(1, 0.01, 900 * MIB, 2300 * MIB)
    plan.step_ended(7, 1000 * MIB, 2400 * MIB)
    assert plan.next_request() is None
    both = after_first(late := Clock())
    late.now_s = 1e6
    both.step_ended(4, 1200 * MIB, 2600 * MIB)
    assert both.next_request() is RISEN, "what is allocated explains it"


def test_unrecorded_rises_of_reserved_use_no_other_windows() -> None:
    clock = Clock()
    plan = after_first(clock)
    reserved = 2000 * MIB
    for step in range(4, 4 + 3 * MAX_RISE_WINDOWS):
        reserved = int(reserved * 1.2)
        plan.step_ended(step, 1000 * MIB, reserved)
    clock.now_s = 1e6
    plan.step_ended(100, 3000 * MIB, reserved)
    assert plan.next_request() is RISEN


def test_a_peak_that_rises_forever_is_recorded_a_few_times() -> None:
    clock = Clock()
    plan = after_first(clock)
    clock.now_s = 1e9
    recorded, peak = 0, 1000 * MIB
    for step in range(4, LATER_STEP):
        peak = int(peak * 1.2)
        plan.step_ended(step, peak, 2 * peak)
        if plan.next_request() is RISEN:
            plan.mark_started(RISEN)
            plan.ended(1, 0.01, peak, 2 * peak)
            recorded += 1
    assert recorded == MAX_RISE_WINDOWS


def test_a_request_is_served_at_once_and_once() -> None:
    plan = after_first(Clock())
    plan.ask()
    plan.ask()
    assert plan.next_request() is ASKED
    plan.mark_started(ASKED)
    assert plan.next_request() is None


def test_a_missed_window_is_not_recorded_late() -> None:
    clock = Clock()
    plan = WindowPlan(now=clock)
    plan.ask()
    plan.missed()
    assert plan.next_request() is None
    clock.now_s = 1e6
    plan.step_ended(LATER_STEP, 1000 * MIB, 2000 * MIB)
    assert plan.next_request() is LATER


def test_leaks_are_recorded_at_once_a_few_per_session() -> None:
    """It is worth more than its share of the time; found in the first steps, it waits for their window to end."""
    early = WindowPlan(now=Clock())
    early.leak_found()
    assert early.next_request() is FIRST
    plan = after_first(Clock())
    for _ in range(MAX_LEAK_WINDOWS):
        plan.leak_found()
        plan.leak_found()
        assert plan.next_request() is LEAK
        plan.mark_started(LEAK)
        assert plan.next_request() is None, "those that were found together have one"
    plan.leak_found()
    assert plan.next_request() is None
    plan = after_first(Clock())
    plan.leak_found()
    plan.missed()
    assert plan.next_request() is None, "the history is the user's"
