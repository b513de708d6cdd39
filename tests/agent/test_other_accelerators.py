"""Intel's XPU and Apple's MPS: fakes of PyTorch's counters, in real trainings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from collector import Collector
from training import Arrived, run

from vramscope.memory import other_accelerator as other_module
from vramscope.memory.other_accelerator import OtherAccelerator, other_accelerator

MIB = 1 << 20
XPU = """
from types import SimpleNamespace
asked = []
torch.version.cuda = None
torch.accelerator.current_accelerator = lambda check_available=False: None if check_available else torch.device("xpu")
torch.accelerator.device_count = lambda: 2
torch.xpu.is_initialized = lambda: True
def stats(index):
    asked.append(index)
    held = {0: 0, 1: 64 << 20}[index]
    return {"allocated_bytes.all.current": held, "allocated_bytes.all.peak": held, "reserved_bytes.all.current": 2 * held}
torch.accelerator.memory_stats = stats
torch.xpu.get_device_properties = lambda index: SimpleNamespace(name="Intel Arc", total_memory=16 << 30)
"""
MPS = """
torch.version.cuda = None
torch.accelerator.current_accelerator = lambda check_available=False: None if check_available else torch.device("mps")
torch.backends.mps.is_available = lambda: True
torch.mps.current_allocated_memory = lambda: 64 << 20
torch.mps.driver_allocated_memory = lambda: 100 << 20
torch.mps.recommended_max_memory = lambda: 12 << 30
"""
TRAINING = """
agent.attach(model, name="other")
for _ in range(6):
    model(torch.zeros(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)
agent.detach()
"""


def trained(fakes: str, collector: Collector, spool: Path) -> tuple[Arrived, str]:
    """What arrived of a training whose PyTorch reports this accelerator, and what it printed."""
    model = "model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 4))\noptimizer = torch.optim.AdamW(model.parameters())\n"
    printed = run(fakes + model + TRAINING, collector, spool, loop=False)
    return Arrived(collector), printed


def test_memory_of_an_xpu_is_sampled_and_its_peaks_stay_unknown(collector: Collector, spool: Path) -> None:
    arrived, printed = trained(XPU, collector, spool)
    (device,) = arrived.attached.devices
    assert (device.index, device.name, device.total_bytes) == (1, "Intel Arc (XPU)", 16 << 30)
    samples, steps = arrived.rows("samples"), arrived.rows("steps")
    assert samples and steps
    assert {row["device"] for row in [*samples, *steps]} == {1}
    assert {(row["allocated_bytes"], row["reserved_bytes"]) for row in samples} == {(64 * MIB, 128 * MIB)}
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    of_steps = set().union(*steps)
    assert not {name for name in of_steps if name.endswith("_bytes")}, "the host's memory is not the device's"
    assert "on the CPU" not in printed and "Peak" not in printed


def test_memory_of_mps_is_metals_figure_and_pytorchs(collector: Collector, spool: Path) -> None:
    arrived, printed = trained(MPS, collector, spool)
    (device,) = arrived.attached.devices
    assert device.index == 0 and device.name.startswith("Apple GPU (MPS") and device.total_bytes == 12 << 30
    samples = arrived.rows("samples")
    assert {(row["allocated_bytes"], row["process_device_bytes"]) for row in samples} == {(64 * MIB, 100 * MIB)}
    assert not any("reserved_bytes" in row for row in samples), "Metal's figure has more than PyTorch's cache"
    assert "on the CPU" not in printed


def test_a_training_on_the_cpu_of_such_a_machine_is_one_on_the_cpu(collector: Collector, spool: Path) -> None:
    arrived, _ = trained(XPU.replace("64 << 20", "0"), collector, spool)
    assert [device.index for device in arrived.attached.devices] == [-1]
    assert {row["device"] for row in arrived.rows("steps")} == {-1}


@pytest.mark.parametrize("files", [True, False])
def test_a_machine_without_an_xpu_is_known_without_asking_its_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: bool
) -> None:
    monkeypatch.setattr(torch.xpu, "device_count", lambda: pytest.fail("it could initialize the driver"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(other_module, "FILES_OF_XPU", (tmp_path if files else tmp_path / "none",))
    assert OtherAccelerator("xpu").is_missing() is not files
    assert not OtherAccelerator("npu").is_missing(), "its files are not known"
    monkeypatch.setattr(sys, "platform", "win32")
    assert not OtherAccelerator("xpu").is_missing()


def test_a_mac_without_mps_has_no_counters_and_is_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> int:
        raise RuntimeError("Cannot execute getCurrentAllocatedMemory() without MPS backend.")

    monkeypatch.setattr(torch.mps, "current_allocated_memory", refuses)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    mps = OtherAccelerator("mps")
    assert mps.is_missing() and mps.devices_in_use() == [] and mps.read(0) == {}
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert not mps.is_missing() and mps.devices_in_use() == []


def test_a_device_that_is_not_initialized_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda index: pytest.fail("it would initialize the device"))
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: False)
    assert OtherAccelerator("xpu").devices_in_use() == []
    assert OtherAccelerator("xpu").read(0) == {}


def test_a_pytorch_without_common_counters_is_asked_by_the_devices_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.accelerator, "memory_stats")
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.xpu, "memory_stats", lambda index: {"allocated_bytes.all.current": 5, "num_ooms": 1})
    assert OtherAccelerator("xpu").read(0) == {"allocated_bytes": 5, "ooms": 1}


def test_a_device_without_counters_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(index: int) -> dict[str, int]:
        raise NotImplementedError("getDeviceStats")

    monkeypatch.setattr(torch.accelerator, "memory_stats", refuses)
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    assert OtherAccelerator("xpu").read(0) == {} and OtherAccelerator("xpu").devices_in_use() == []


@pytest.mark.parametrize("kind", ["cuda", None])
def test_cuda_and_a_build_without_accelerator_are_none(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    device = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    assert other_accelerator() is None
    monkeypatch.delattr(torch, "accelerator")
    assert other_accelerator() is None


def test_a_build_for_xpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    found = other_accelerator()
    assert found is not None and found.kind == "xpu"


@pytest.mark.parametrize("built_for", ["cuda", "hip"])
def test_a_build_for_cuda_or_rocm_is_not_asked(monkeypatch: pytest.MonkeyPatch, built_for: str) -> None:
    """PyTorch 2.6 would count its devices, after which a forked process cannot initialize CUDA."""
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, built_for, "13.0")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: pytest.fail("it was asked"))
    assert other_accelerator() is None


def test_a_pytorch_that_raises_without_a_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.6 does, where later versions return None."""

    def refuses() -> torch.device:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", refuses)
    assert other_accelerator() is None
