"""Sections of an out-of-memory record: one that fails leaves the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vramscope.guard import guard
from vramscope.oom.recent_samples import RecentSamples
from vramscope.oom.record_builder import RecordBuilder
from vramscope.oom.trigger import OomTrigger
from vramscope.process.identity import JobRank
from vramscope.protocol import messages
from vramscope.protocol.oom_record import pack, unpack
from vramscope.steps.clock import StepClock


def techniques() -> Sequence[messages.Technique]:
    raise LookupError("a fault in the section context")


def test_a_failing_section_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "raise_faults", False)
    builder = RecordBuilder(
        StepClock(phases=True, in_every_step=False),
        RecentSamples(100),
        processes=lambda device: None,
        optimizers=[],
        roots=[],
        windows=None,
        leaks=list,
        detector=lambda: None,
        techniques=techniques,
        losses=lambda since_ns: {"time_ns": b"", "step": b""},
        place=JobRank(1, 2),
    )
    record = builder.build(OomTrigger("exception", None, 5 << 20, free_bytes=1 << 20, error_type="MemoryError"))
    assert record.notes == ["The section context could not be read."]
    assert (record.torch, record.process_rss_bytes, record.techniques) == ("", None, [])
    assert (record.rank, record.asked_bytes, record.free_bytes) == (1, 5 << 20, 1 << 20)
    assert record.losses == {"time_ns": b"", "step": b""}
    assert unpack(pack(record)) == record


def test_memory_outside_pytorch_is_compared_with_that_of_a_finished_context() -> None:
    """CUDA's context grows while it is created. PyTorch has reserved nothing then."""
    samples = RecentSamples(10)
    for used, reserved in ((300, 0), (300, 0), (620, 100), (620, 100), (720, 200)):
        samples.put(0, {"process_device_bytes": used, "reserved_bytes": reserved})
    assert samples.least_outside_bytes(0) == 520
