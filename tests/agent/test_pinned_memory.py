"""Page-locked host memory of PyTorch's allocator is part of each sample, with the rounding to powers of two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from collector import Collector
from training import Arrived, run

from vramscope.memory.host import PinnedMemory, pinned_memory
from vramscope.protocol.series import UNKNOWN

MIB = 1 << 20
TRAINING = """
session = agent.attach(model)
train(2)
time.sleep(0.5)
batch = torch.empty(33 << 20, dtype=torch.uint8, pin_memory=True)
train(2)
time.sleep(1)
del batch
time.sleep(1)
agent.detach()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not hasattr(torch._C, "_cuda_hostMemoryStats"), reason="PyTorch counts it since 2.8")
def test_a_block_counts_with_its_rounding_and_stays_in_the_cache(collector: Collector, spool: Path) -> None:
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
