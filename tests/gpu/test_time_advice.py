"""The rules about time: each on what it is meant for, and silent where it has nothing to say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from profile_maker import a_profile

from vramscope import window, wire
from vramscope.ring import Ring
from vramscope.trace.plan import FIRST, Plan
from vramscope_server.analysis.advice import launch_bound, retries, waits_for_data
from vramscope_server.analysis.advice.facts import Facts
from vramscope_server.analysis.history.trace import Trace, from_window

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def recorded(body: Any, *, limit_bytes: int | None = None) -> Trace:
    """A window of three steps of a real training that does ``body`` in each."""
    import torch

    from vramscope.memory.allocator import share_peak_counters
    from vramscope.steps.clock import StepClock
    from vramscope.trace.recorder import Recorder

    torch.cuda.empty_cache()
    torch.empty(1, device="cuda")
    clock, ring, plan = StepClock(), Ring(), Plan()
    clock.watch(share_peak_counters().watch(0))
    recorder = Recorder(clock, ring, plan=plan, pace_s=0.0)
    assert plan.wish() is FIRST
    total = torch.cuda.get_device_properties(0).total_memory
    if limit_bytes is not None:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + limit_bytes) / total)
    try:
        recorder.begin()
        for _ in range(FIRST.steps):
            body()
            clock.end_step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        recorder.close()
    pieces = [message for message in ring.take(1 << 30) if isinstance(message, wire.Piece)]
    return from_window(window.unpack(b"".join(piece.data for piece in pieces)))


def sizes(*mib: int) -> Any:
    import torch

    def body() -> None:
        for size in mib:
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")

    return body


def test_memory_that_is_given_back_for_a_request_costs_at_least_the_time_between() -> None:
    """Each step asks for more than any cached segment has, on a card that has no room for both."""
    each = iter((sizes(100), sizes(130), sizes(160)))
    advice = retries.advise(Facts(recorded(lambda: next(each)(), limit_bytes=200 * MIB)))
    assert advice is not None
    assert advice.evidence["retries"] == 2
    assert 0 < advice.evidence["lost_ns"] <= advice.evidence["span_ns"]
    assert advice.seconds == pytest.approx(advice.evidence["lost_ns"] / 1e9 / advice.evidence["steps"])
    assert "expandable_segments:True" in advice.sentence


def test_a_training_with_room_and_one_that_empties_the_cache_itself_are_no_retries() -> None:
    import torch

    assert retries.advise(Facts(recorded(sizes(100, 150, 100, 150)))) is None
    both = sizes(100, 150)

    def emptied() -> None:
        both()
        torch.cuda.empty_cache()

    trace = recorded(emptied)
    assert retries.retries_in(trace.events) == (0, 0), "what came back would have served"
    assert retries.advise(Facts(trace)) is None


def test_a_device_that_waits_for_python_is_told_and_one_that_works_is_not() -> None:
    trace = recorded(sizes(1))
    busy, idle = a_profile(), a_profile(device_busy_ns=20_000_000)
    advice = launch_bound.advise(Facts(trace, profile=idle))
    assert advice is not None
    # 10 of the 30 ms that a step took before it was profiled
    assert advice.evidence["at_most_seconds"] == pytest.approx(0.02)
    assert advice.sentence.startswith(
        "The device works 10 ms of a step's 30 ms: 66.7 % of the time it waits for Python"
    )
    assert advice.saves_bytes is None and advice.seconds is None
    assert launch_bound.advise(Facts(trace, profile=busy)) is None
    assert launch_bound.advise(Facts(trace, profile=a_profile(device_time=False))) is None, "unknown is not idle"
    assert launch_bound.advise(Facts(trace)) is None


def test_steps_that_wait_for_data_are_told_by_how_much() -> None:
    trace = recorded(sizes(1))
    slow = a_profile(phases={"data": 40_000_000, "forward": 30_000_000, "backward": 30_000_000})
    advice = waits_for_data.advise(Facts(trace, profile=slow))
    assert advice is not None
    assert advice.seconds == pytest.approx(0.02)
    assert advice.sentence.startswith("40.0 % of a step (20 ms) pass before its forward begins")
    quick = a_profile(phases={"data": 15_000_000, "forward": 85_000_000})
    assert waits_for_data.advise(Facts(trace, profile=quick)) is None
    assert waits_for_data.advise(Facts(trace, profile=a_profile())) is None, "phases are unknown"
