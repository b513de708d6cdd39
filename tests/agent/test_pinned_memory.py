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


def test_counters_of_another_form_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_hostMemoryStats", lambda: {"allocated_bytes": {"current": 5}}, raising=False)
    assert pinned_memory() == PinnedMemory(5, UNKNOWN)
