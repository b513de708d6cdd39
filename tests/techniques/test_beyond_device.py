"""Memory beyond the device, as Windows and WSL allow it, with a fake of the allocator's counters."""

from __future__ import annotations

import platform
import sys
from types import SimpleNamespace

import pytest
import torch

from vramscope.techniques.observation import TrainingState
from vramscope.techniques.pitfalls import beyond_device

GIB = 1 << 30
WSL = "5.15.153.1-microsoft-standard-WSL2"


def training() -> TrainingState:
    return TrainingState(
        framework="loop", config={}, roots=[], known_roots=[], optimizers=[], observation=None, observed=0,
        with_cache_clear=0, step=3,
    )  # fmt: skip


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Peak reserved memory of each device of 8 GiB; a test changes it."""
    sizes = [GIB, GIB]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=8 * GIB))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: sizes[device])
    return sizes


def test_memory_beyond_the_device_is_reported_in_wsl(reserved: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: WSL)
    assert beyond_device.find(training()) is None
    reserved[1] = 8 * GIB
    assert beyond_device.find(training()) is None, "all of the device"
    reserved[1] = 11 * GIB
    found = beyond_device.find(training())
    assert found is not None and found.kind == "memory-beyond-device"
    assert (
        "reserved 11.0 GiB on cuda:1, which has 8.00 GiB. The driver of WSL has moved at least 3.00 GiB" in found.text
    )
    assert "Prefer No Sysmem Fallback" in found.advice


def test_it_is_reported_on_windows_and_nowhere_else(reserved: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux, memory beyond the device is another allocator's, such as managed memory."""
    reserved[0] = 11 * GIB
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-45-generic")
    assert beyond_device.find(training()) is None
    monkeypatch.setattr(sys, "platform", "win32")
    found = beyond_device.find(training())
    assert found is not None and "The driver of Windows" in found.text


def test_without_cuda_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: WSL)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("started CUDA"))
    assert beyond_device.find(training()) is None
