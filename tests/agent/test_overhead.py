"""What watching costs is found on a machine whose speed drifts, and is not made up where it costs nothing."""

from __future__ import annotations

import time
from random import Random

import pytest

from vramscope.protocol import series
from vramscope.sampling.overhead import OverheadMeter
from vramscope.steps.clock import StepClock
from vramscope.steps.detail_plan import PLAIN_HOOKS_NS
from vramscope.steps.records import StepRecord


def measured(cost_ns: int, left_on_ns: int, seed: int, steps: int = 3000, scan_ns: int = 0):
    """A training of 10 ms steps on a machine that is slowed by others for seconds at a time. Scans: in every fiftieth."""
    random, at = Random(seed), [0]
    clock = StepClock(now=lambda: at[0], random=Random(seed + 1))
    meter, slowed = OverheadMeter(), 1.0
    for number in range(1, steps + 1):
        if random.random() < 0.02:
            slowed = random.choice((1.0, 1.0, 1.3, 3.0))
        watched = clock.watched
        own = left_on_ns + (cost_ns if watched else 0) + (scan_ns if number % 50 == 0 else 0)
        at[0] += int(10_000_000 * slowed * random.gauss(1, 0.03)) + own
        clock.end_step()
        clock.finished.take()
        meter.add(StepRecord(number, at[0], [], 1, watched, own, (), None))
    return meter.message(0.0)


def test_a_cost_of_five_percent_is_found_within_two() -> None:
    found = [measured(400_000, 100_000, seed) for seed in range(8)]
    for message in found:
        assert message.fraction == pytest.approx(0.05, abs=0.02)
    assert sum(message.resolvable for message in found) >= 6


def test_a_typical_time_that_was_too_low_is_learned_again() -> None:
    """The first hundred steps cost 5 µs, all others 0.4 ms: these are no rare ones, whose time would count twice."""
    end_ns = 0
    clock, meter = StepClock(now=lambda: end_ns, random=Random(1)), OverheadMeter()
    for number in range(1, 3001):
        watched = clock.watched
        own = 5_000 if number <= 100 or not watched else 400_000
        end_ns += 10_000_000 + own
        clock.end_step()
        clock.finished.take()
        meter.add(StepRecord(number, end_ns, [], 1, watched, own, (), None))
    assert meter.message(0.0).fraction == pytest.approx(0.04, abs=0.005)


def test_a_cost_of_nothing_is_below_the_noise() -> None:
    found = [measured(0, 1_000, seed) for seed in range(8)]
    assert sum(message.resolvable for message in found) <= 1


def test_before_enough_was_seen_nothing_is_claimed() -> None:
    message = measured(400_000, 100_000, 1, steps=150)
    assert message.fraction is None and not message.resolvable
    assert message.watched_steps + message.unwatched_steps == 150


def test_scans_in_a_few_steps_count() -> None:
    """A scan of 0.1 s in every fiftieth step takes 2 ms of each step. The median of steps does not show it."""
    found = [measured(100_000, 20_000, seed, scan_ns=100_000_000) for seed in range(4)]
    for message in found:
        assert message.seconds_per_step == pytest.approx(0.0021, abs=0.0004)
        assert message.resolvable


def test_a_resumed_run_counts_from_its_own_first_step() -> None:
    """Its steps begin at 5,001, and the clock at the start of the machine, hours ago: that time is none of the training's."""
    meter, end_ns = OverheadMeter(), 100_000 * 10**9
    for number in range(5_001, 8_001):
        watched, own = number % 64 > 3, 100_000_000 if number % 50 == 0 else 2_000
        end_ns += 10_000_000 + own
        meter.add(StepRecord(number, end_ns, [], 1, watched, own, (), None, thread_ns=10_000_000 + own))
    assert meter.message(0.0).fraction == pytest.approx(0.2, abs=0.01)


def test_the_threads_and_the_hook_of_plain_steps_count() -> None:
    """Groups of 64 plain steps of 0.3 ms, and 1 ms of the threads in each: 15 µs a step, and the hook's time."""
    meter, at, number, threads_s = OverheadMeter(), 0, 0, 0.5
    for group in range(120):
        for steps in (1, 1, 64):
            number += steps
            at += 300_000 * steps
            meter.add(StepRecord(number, at, [], 1, steps == 1, 0, (), None, steps=steps))
        threads_s += 0.001
        message = meter.message(threads_s) if group % 10 == 0 else None
    message = meter.message(threads_s)
    assert message.seconds_per_step == pytest.approx((PLAIN_HOOKS_NS + 1e6 / 66) / 1e9, rel=0.1)
    assert message.resolvable


def on_a_busy_machine(scan_ns: int, scan_thread_ns: int) -> float:
    """A loop of 0.3 ms steps. Other programs stop it for 40 ms in every twentieth, and lengthen every hundredth, with a scan."""
    meter, end_ns, thread_ns = OverheadMeter(), 0, 250_000
    for number in range(1, 4001):
        scanned = number % 100 == 0
        watched, own = number % 64 > 3, scan_ns if scanned else 2_000
        end_ns += 300_000 + own + (40_000_000 if number % 20 == 7 else 0)
        used_ns = thread_ns + (scan_thread_ns if scanned else 0)
        meter.add(StepRecord(number, end_ns, [], 1, watched, own, (), None, thread_ns=used_ns))
    return meter.message(0.0).fraction or 0.0


def test_what_other_programs_take_is_no_cost_of_the_agent() -> None:
    """A scan takes 60 ms by the clock, in 100 steps that take 230 ms. In CPU time these steps need 25 ms: the median step takes
    0.3 ms, and of that 0.6 ms in each step would be 200 %. The smaller share counts."""
    hooks = 2_000 / 300_000
    assert on_a_busy_machine(60_000_000, 60_000_000) == pytest.approx(60 / 230 + hooks, abs=0.01)
    assert on_a_busy_machine(60_000_000, 5_000_000) == pytest.approx(5 / 25 + hooks, abs=0.01)
    assert on_a_busy_machine(60_000_000, 0) == pytest.approx(hooks, abs=0.005)


def test_a_record_has_the_cpu_time_of_its_thread() -> None:
    """Waiting takes none. That of the first record is unknown: nobody read it before."""
    clock = StepClock()
    clock.end_step()
    time.sleep(0.1)
    clock.end_step()
    began = time.thread_time()
    while time.thread_time() < began + 0.1:
        pass
    clock.end_step()
    first, waited, worked = clock.finished.take()
    assert first.thread_ns == series.UNKNOWN
    assert 0 <= waited.thread_ns < 50_000_000 < 100_000_000 <= worked.thread_ns
