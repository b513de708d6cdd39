"""The rules about time: each on what it is meant for, and silent where it has nothing to say."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from profile_maker import a_profile

from vramscope.protocol import messages, window
from vramscope.protocol import profile as profile_tables
from vramscope.protocol.profile import Profile
from vramscope.recording.plan import FIRST, WindowPlan
from vramscope.transport.ring import Ring
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import retries, waits_for_data
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def recorded(body: Any, *, limit_bytes: int | None = None) -> Trace:
    """A window of three steps of a real training that does ``body`` in each."""
    import torch

    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.recording.recorder import WindowRecorder
    from vramscope.steps.clock import StepClock

    torch.cuda.empty_cache()
    torch.empty(1, device="cuda")
    clock, ring, plan = StepClock(), Ring(), WindowPlan()
    clock.watch(share_peak_counters().watch(0))
    recorder = WindowRecorder(clock, ring, plan=plan, pace_s=0.0)
    assert plan.next_request() is FIRST
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
    pieces = [message for message in ring.take(1 << 30) if isinstance(message, messages.Piece)]
    return from_window(window.unpack(b"".join(piece.data for piece in pieces)))


def sizes(*mib: int) -> Any:
    import torch

    def body() -> None:
        for size in mib:
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")

    return body


def test_memory_that_is_given_back_for_a_request_costs_at_least_the_time_between() -> None:
    """Each step asks for more than any cached segment has, on a card that has no room for both."""
    for _ in range(
        5
    ):  # (a core that is taken away between two steps makes what the retries took a small part of the time)
        each = iter((sizes(100), sizes(130), sizes(160)))
        advice = retries.advise(StepFacts(recorded(lambda each=each: next(each)(), limit_bytes=200 * MIB)))
        if advice is not None:
            break
    assert advice is not None
    assert advice.evidence["retries"] == 2
    assert 0 < advice.evidence["lost_ns"] <= advice.evidence["span_ns"]
    assert advice.seconds == pytest.approx(advice.evidence["lost_ns"] / 1e9 / advice.evidence["steps"])
    assert "Less fragmentation or a smaller batch" in advice.sentence


def test_a_training_with_room_and_one_that_empties_the_cache_itself_are_no_retries() -> None:
    import torch

    assert retries.advise(StepFacts(recorded(sizes(100, 150, 100, 150)))) is None
    both = sizes(100, 150)

    def emptied() -> None:
        both()
        torch.cuda.empty_cache()

    trace = recorded(emptied)
    assert retries.retries_in(trace.events) == (0, 0), "what came back would have served"
    assert retries.advise(StepFacts(trace)) is None


def profiled(item_s: float) -> tuple[Profile, float]:
    """Two steps of a real training whose data set takes so long for an item; the seconds that they waited, by our own clock."""
    import torch
    from torch import nn

    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.profiler.plan import ASKED
    from vramscope.profiler.recorder import ProfileRecorder
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks

    class Texts(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, at: int) -> Any:
            time.sleep(item_s)
            return torch.zeros(64, 128)

    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    clock, ring = StepClock(), Ring()
    hooks = LoopHooks(clock)
    hooks.install([model])
    clock.watch(share_peak_counters().watch(0))
    recorder = ProfileRecorder(clock, ring, roots=hooks.roots, pace_s=0.0)
    recorder.begin()
    waits_s = []
    try:
        began_s = time.perf_counter()
        for batch in torch.utils.data.DataLoader(Texts(), batch_size=4):
            waits_s.append(time.perf_counter() - began_s)
            if len(waits_s) == 2:
                recorder.ask()
            model(batch.cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            began_s = time.perf_counter()
        while recorder._uploads._count:
            time.sleep(0.01)
    finally:
        recorder.close()
        hooks.remove()
    pieces = [one for one in ring.take(1 << 30) if isinstance(one, messages.Piece) and one.kind == "profile"]
    profile = profile_tables.unpack(b"".join(piece.data for piece in pieces))
    assert (profile.reason, profile.steps) == (ASKED.reason, 2)
    return profile, sum(waits_s[profile.first_step - 1 : profile.last_step])


def test_a_loop_with_a_slow_loader_is_told_how_long_it_waits_and_one_with_a_fast_loader_is_not() -> None:
    trace = recorded(sizes(1))
    slow, waited_s = profiled(0.02)
    advice = waits_for_data.advise(StepFacts(trace, profile=slow))
    assert advice is not None and advice.seconds is not None
    assert advice.seconds >= 0.08, "four items a batch"
    assert advice.seconds == pytest.approx(waited_s / 2, rel=0.25), "copying to the device comes beside"
    assert "is spent before its forward pass, waiting for data" in advice.sentence
    for _ in range(5):  # (a core that is taken away at the wrong moment makes a slow loader of any)
        fast, _ = profiled(0.0)
        assert fast.phases["data"] > 0
        if waits_for_data.advise(StepFacts(trace, profile=fast)) is None:
            return
    pytest.fail("the steps are said to wait for a loader that only returns zeros")


def test_steps_that_wait_for_data_are_told_by_how_much() -> None:
    trace = recorded(sizes(1))
    slow = a_profile(phases={"data": 40_000_000, "forward": 30_000_000, "backward": 30_000_000})
    advice = waits_for_data.advise(StepFacts(trace, profile=slow))
    assert advice is not None
    assert advice.seconds == pytest.approx(0.02)
    assert advice.sentence.startswith("40.0 % of a step (20.0 ms) is spent before its forward pass")
    quick = a_profile(phases={"data": 15_000_000, "forward": 85_000_000})
    assert waits_for_data.advise(StepFacts(trace, profile=quick)) is None
    assert waits_for_data.advise(StepFacts(trace, profile=a_profile())) is None, "phases are unknown"
