"""Page-locked host memory of PyTorch's allocator is part of each sample, with the rounding to powers of two."""

from __future__ import annotations

import collections
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from collector import Collector
from training import Arrived, run

from vramscope.memory import host
from vramscope.memory.host import PINNED_EVERY_S, PinnedMemory, PinnedMemoryReader, pinned_memory
from vramscope.memory.private_pools import PrivatePools
from vramscope.memory.unusable import UnusableReader
from vramscope.protocol.series import UNKNOWN
from vramscope.sampling.sampler import Sampler
from vramscope.steps.clock import StepClock
from vramscope.transport.ring import Ring

MIB = 1 << 20
TRAINING = """
session = agent.attach(model)
train(2)
time.sleep(0.5)
batch = torch.empty(33 << 20, dtype=torch.uint8, pin_memory=True)
train(2)
time.sleep(1.5)
del batch
time.sleep(1.5)
agent.detach()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not hasattr(torch._C, "_cuda_hostMemoryStats"), reason="PyTorch counts it since 2.8")
def test_a_block_counts_with_its_rounding_and_stays_in_the_cache(collector: Collector, spool: Path) -> None:
    """It is read once a second, so that each state lasts longer."""
    run(TRAINING, collector, spool)
    samples = [row for row in Arrived(collector).rows("samples") if "pinned_bytes" in row]
    before, highest, after = samples[0], max(samples, key=lambda row: row["pinned_in_use_bytes"]), samples[-1]
    assert highest["pinned_bytes"] - before["pinned_bytes"] >= 64 * MIB, "33 MiB take a block of 64"
    assert highest["pinned_in_use_bytes"] - before["pinned_in_use_bytes"] >= 64 * MIB
    assert after["pinned_in_use_bytes"] <= highest["pinned_in_use_bytes"] - 64 * MIB
    assert after["pinned_bytes"] >= 64 * MIB, "PyTorch keeps the block"


def test_an_older_pytorch_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_hostMemoryStats", raising=False)
    assert pinned_memory() == PinnedMemory(UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    "counters",
    [
        pytest.param({"allocated_bytes": 5, "reserved_bytes": 8}, id="2.8 and 2.9"),
        pytest.param({"allocated_bytes": 8, "active_bytes": 5}, id="2.13"),
    ],
)
def test_the_cache_is_part_of_the_whole_in_each_version(
    monkeypatch: pytest.MonkeyPatch, counters: dict[str, int]
) -> None:
    of_pytorch = {name: {"current": value} for name, value in counters.items()}
    monkeypatch.setattr(torch._C, "_cuda_hostMemoryStats", lambda: of_pytorch, raising=False)
    assert pinned_memory() == PinnedMemory(pinned_bytes=8, pinned_in_use_bytes=5)


@pytest.mark.parametrize("counters", [{}, {"allocated_bytes": {"current": 5}}, {"reserved_bytes": {"current": 5}}])
def test_counters_of_another_form_are_unknown(
    monkeypatch: pytest.MonkeyPatch, counters: dict[str, dict[str, int]]
) -> None:
    """Without another counter, allocated_bytes may be with the cache or without."""
    monkeypatch.setattr(torch._C, "_cuda_hostMemoryStats", lambda: counters, raising=False)
    assert pinned_memory() == PinnedMemory(UNKNOWN, UNKNOWN)


def test_devices_and_samples_of_one_second_share_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading takes the locks of PyTorch's allocator, for which copies of the training wait."""
    now, readings = [1000.0], iter(range(1, 10))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(host, "pinned_memory", lambda: PinnedMemory(next(readings), 0))
    reader = PinnedMemoryReader()
    assert {reader.read().pinned_bytes for _ in range(20)} == {1}
    now[0] += PINNED_EVERY_S
    assert {reader.read().pinned_bytes for _ in range(20)} == {2}


def test_the_sampler_reads_it_once_for_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[PinnedMemory] = []

    def counted() -> PinnedMemory:
        readings.append(PinnedMemory(8, 5))
        return readings[-1]

    monkeypatch.setattr(host, "pinned_memory", counted)
    monkeypatch.setattr(PrivatePools, "read", lambda self, device, stats: {})
    monkeypatch.setattr(UnusableReader, "read", lambda self, device: UNKNOWN)
    sampler = Sampler(interval_ms=100, clock=StepClock(), ring=Ring(100), on_devices=lambda devices: None)
    stats: Any = collections.defaultdict(lambda: {"all": {"current": 0}}, num_alloc_retries=0, num_ooms=0)
    rows = [sampler._allocator_columns(device, stats) for device in (0, 1, 0, 1)]
    assert [(row["pinned_bytes"], row["pinned_in_use_bytes"]) for row in rows] == [(8, 5)] * 4
    assert len(readings) == 1
